"""One step of the fingerprint worker: update the requests, read each context, write the new slots, sample.

Each slot that is read is compared with its expected digest. A difference is added to everything that the step computes
for the request, as wrong keys and values would spread through a model: to its next token and to the slots it writes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import DraftTokenIds, LogprobsTensors, ModelRunnerOutput
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin

from coldproof.adapters.common.score_noise import noise_from_environment
from coldproof.adapters.protocol.provenance import NO_BLOCK, WrongRead
from coldproof.adapters.vllm.fingerprint.digest import (
    FIRST_TOKEN,
    MASK,
    TOKENS,
    Digests,
    draw,
    mix_one,
    pooled_rows,
    seed_of,
    token_at_rank,
    wrong_read_drift,
)
from coldproof.adapters.vllm.fingerprint.draft_model import DraftModel
from coldproof.adapters.vllm.fingerprint.engine_errors import check_drafts, check_length
from coldproof.adapters.vllm.fingerprint.images import EncoderCache, Item
from coldproof.adapters.vllm.fingerprint.kv_slots import LayerSlots, Numbers, first_run
from coldproof.adapters.vllm.fingerprint.lora import Loras
from coldproof.adapters.vllm.fingerprint.sampler import SampledToken, Scores, grammar_rows, logprobs_of
from coldproof.adapters.vllm.fingerprint.sequences import Sequence, WriteHistory, WriteRecord
from coldproof.adapters.vllm.fingerprint.topology import LayerKind
from coldproof.adapters.vllm.releases import copy_blocks

WRONG_DRAFTS = 4  # on average one draft of this many is wrong on purpose, so that rejection is tested, too


class RequestStep(msgspec.Struct):
    """One request of a step, which computes the positions `start` to `end`.

    `expected`: the digests of the request's tokens and drafts. `drift`: what wrong states add to the new digests.
    `states`: the results: those after the last known token and after each draft; empty in prefill.
    """

    sequence: Sequence
    content: str | None
    drafts: list[int]
    start: int
    end: int
    expected: Digests
    drift: int
    states: list[int] = []

    @property
    def computed_end(self) -> int:
        """Return the end of the positions whose tokens are part of the request, once its tokens are sampled."""
        return min(self.end, self.sequence.length - 1) if self.states else self.end


class Runner:
    """The requests of the scheduler and the KV tensors that they share."""

    def __init__(
        self,
        config: VllmConfig,
        blocks: int,
        tensors: dict[str, torch.Tensor],
        slots: dict[str, LayerSlots],
        draft_model: DraftModel,
        loras: Loras | None,
    ) -> None:
        self.config, self.blocks, self.tensors, self.slots, self.loras = config, blocks, tensors, slots, loras
        self.draft_model = draft_model
        self.sequences: dict[str, Sequence] = {}
        self.prompt_scores: dict[str, LogprobsTensors] = {}
        self.writes = WriteHistory()
        self.encoder = EncoderCache()
        self.version = self.step = 0  # `version`: the number of updates of the weights
        self.weights: str | None = None  # their digest; None: those of the start
        self.wrong_reads: list[WrongRead] = []
        self.request_steps: list[RequestStep] = []
        self.connector_output: Any = None
        self.draft_count = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
        self.drafts: DraftTokenIds | None = None
        self.scores = Scores(noise_from_environment())
        self.pools = config.model_config.runner_type == "pooling"
        self.batch = ""  # describes what the step computes, in order

    def execute(self, scheduled: Any) -> ModelRunnerOutput | None:
        """Execute a step without the sampling. A step without tokens may still move blocks between tiers.

        Return the output of a step without tokens or with pooled answers; None if the tokens are to be sampled.
        """
        self.step += 1
        connector: Any = get_kv_transfer_group() if has_kv_transfer_group() else None
        if connector is not None:  # before any write: blocks that get a new owner may still have to be stored
            connector.handle_preemptions(scheduled.kv_connector_metadata)
        self.update_requests(scheduled)
        check_drafts(scheduled.scheduled_spec_decode_tokens, scheduled.num_scheduled_tokens)
        if not scheduled.total_num_scheduled_tokens:
            if connector is None:
                return ModelRunnerOutput(req_ids=[], req_id_to_index={})
            return KVConnectorModelRunnerMixin.kv_connector_no_forward(scheduled, self.config)
        with (
            set_forward_context(dict.fromkeys(self.tensors), self.config),  # connectors do nothing without metadata
            KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(
                scheduled, **({"defer_finalize": True} if self.draft_model.layers else {})
            ) as self.connector_output,
        ):
            self.load_adapters(scheduled)
            self.encoder.update(scheduled, self.images_and_tower)
            for name in self.tensors if connector is not None else ():
                connector.wait_for_layer_load(name)
            counts = scheduled.num_scheduled_tokens
            self.request_steps = [self.prepare(name, count, scheduled) for name, count in counts.items()]
            self.batch = repr([(one.start, one.end, int(one.expected[one.end - 1])) for one in self.request_steps])
            for step in self.request_steps:
                self.write(step, step.expected[step.start : step.end])
            for step in self.request_steps:
                self.compute(step)
            self.save_layers(drafts=False)
        return self.pool() if self.pools else None

    def save_layers(self, *, drafts: bool) -> None:
        """Hand the layers of the draft model, or the others, to the connector. As in vLLM, those of a draft model are
        computed after the sampling, and the step's metadata is kept until then.
        """
        if has_kv_transfer_group():
            for name in self.tensors:
                if (name in self.draft_model.layers) is drafts:
                    get_kv_transfer_group().save_kv_layer(name, self.tensors[name], None)

    def update_requests(self, scheduled: Any) -> None:
        """Add, update and remove requests as the scheduler says. Zero and copy blocks."""
        for name in scheduled.finished_req_ids:
            self.sequences.pop(name, None)
            self.prompt_scores.pop(name, None)
        if scheduled.new_block_ids_to_zero:
            for tensor in self.tensors.values():
                tensor[scheduled.new_block_ids_to_zero] = 0
        copy_blocks(scheduled, list(self.tensors.values()), self.blocks)
        for new in scheduled.scheduled_new_reqs:
            self.sequences[new.req_id] = Sequence(new)
            check_length(len(self.sequences[new.req_id].prompt), self.config.model_config.max_model_len)
        known = scheduled.scheduled_cached_reqs
        for i, name in enumerate(known.req_ids):
            self.encoder.preempted += name in known.resumed_req_ids and bool(self.sequences[name].items)
            self.sequences[name].update(
                known.new_block_ids[i],
                resumed=name in known.resumed_req_ids,
                computed=known.num_computed_tokens[i],
                outputs=known.num_output_tokens[i],
            )

    def load_adapters(self, scheduled: Any) -> None:
        """Load or touch every adapter of the step, in the order of their numbers (vLLM's own worker uses a set)."""
        if self.loras is not None:
            wanted = {self.sequences[name].lora for name in scheduled.num_scheduled_tokens} - {None}
            for request in sorted(wanted, key=lambda one: one.lora_int_id):
                self.loras.add(request)

    def images_and_tower(self, name: str) -> tuple[tuple[Item, ...], int]:
        """Return the images of a request, and the seed of its vision tower."""
        sequence = self.sequences[name]
        return sequence.items, self.tower(self.content_of(sequence))

    def tower(self, content: str | None) -> int:
        """Return the seed of the vision tower for an adapter's content, which counts where adapters change towers."""
        changes = self.loras is not None and getattr(self.loras.config, "enable_tower_connector_lora", False)
        return seed_of(content if changes else None, self.weights)

    def content_of(self, sequence: Sequence) -> str | None:
        """Return the content of the adapter of a request; None for the base model."""
        return self.loras.content(sequence.lora) if self.loras is not None else None

    def prepare(self, name: str, count: int, scheduled: Any) -> RequestStep:
        """Compute the expected digests of one request and read its states.

        All requests of a step read their states before any of them writes. Keys and values are different: each layer
        writes those of the whole step before it reads, so a request may hit what another one of the same step writes.
        """
        sequence = self.sequences[name]
        content = self.content_of(sequence)
        drafts = [max(0, token) for token in scheduled.scheduled_spec_decode_tokens.get(name, ())]
        expected = sequence.expected(seed_of(content, self.weights))
        if drafts:
            expected = np.concatenate([expected, sequence.digests_after(drafts, sequence.length, int(expected[-1]))])
        start = sequence.computed
        drift = self.read_context(sequence, start, expected, states=True)
        return RequestStep(sequence, content, drafts, start, start + count, expected, drift)

    def write(self, step: RequestStep, digests: Digests) -> None:
        """Write the new slots of a request in all layers."""
        sequence = step.sequence
        for layer in self.slots.values():
            layer.write(sequence.blocks[layer.group], step.start, digests)
        adapter = sequence.lora.lora_name if sequence.lora is not None else None
        self.writes.add(WriteRecord(sequence.name, adapter, step.content, self.version, step.start, digests))

    def compute(self, step: RequestStep) -> None:
        """Read the context in the layers without states, spread what is wrong to the new slots, compute the states.

        All requests of the step have written their slots by then. So a block is wrong that the step gave to another
        request while this one reads it, as in a model.
        """
        sequence, start, end, expected = step.sequence, step.start, step.end, step.expected
        drift = step.drift + self.read_context(sequence, start, expected, states=False)
        drift = (drift + self.encoder.drift(sequence.items, start, end, self.tower(step.content))) & MASK
        digests = expected[start:end] + np.array([drift], np.uint64)
        if drift:
            self.write(step, digests)
        if sequence.pooling is not None:
            sequence.states[start:end] = digests
        elif sequence.sampling.prompt_logprobs is not None and start < len(sequence.prompt):
            self.score_chunk(sequence, start, digests)
        if end >= sequence.length:
            step.states = [int(state) for state in digests[sequence.length - 1 - start :]]

    def read_context(self, sequence: Sequence, start: int, expected: Digests, *, states: bool) -> int:
        """Read the context of the tokens from `start` on, in the layers with states or in the others.

        Return the drift that wrong slots cause: 0 if all slots are correct.
        """
        if not start:
            return 0
        drift = 0
        tables: dict[int, Numbers] = {}  # of each group, for all of its layers
        for number, layer in enumerate(self.slots.values()):
            if (layer.row.kind is LayerKind.STATE) is not states:
                continue
            first = layer.row.first_read(start)
            if layer.group not in tables:
                tables[layer.group] = np.asarray(sequence.blocks[layer.group], dtype=np.int64)
            found = layer.read(tables[layer.group], first, start)
            bad = found != expected[first:start]
            if bad.any():
                positions = np.arange(first, start)[bad]
                drift += wrong_read_drift(found[bad], expected[first:start][bad], positions) * (2 * number + 1)
                if not sequence.wrong_read_recorded:  # later ones are consequences of the first
                    sequence.wrong_read_recorded = True
                    self.wrong_reads.append(self.wrong_read(sequence, number, layer, first, found, bad))
        return drift & MASK

    def wrong_read(
        self, sequence: Sequence, number: int, layer: LayerSlots, start: int, found: Digests, bad: npt.NDArray[np.bool_]
    ) -> WrongRead:
        """Return the first run of wrong slots of a read from position `start` on. `bad` marks the wrong slots."""
        columns = np.arange(start, start + len(bad)) // layer.block
        first, last = first_run(columns, bad)
        blocks, column = sequence.blocks[layer.group], int(columns[first])
        return WrongRead(
            request=sequence.name,
            step=self.step,
            layer=number,
            group=layer.group,
            column=column,
            block=int(blocks[column]) if column < len(blocks) else NO_BLOCK,
            first=start + first,
            last=start + last,
            found=int(found[first]),
            writer=self.writes.writer(int(found[first])),
        )

    def score_chunk(self, sequence: Sequence, start: int, digests: Digests) -> None:
        """Score the prompt tokens that follow the tokens of this chunk. The table is returned after the last chunk."""
        if len(sequence.prompt) < 2:
            return
        if sequence.name not in self.prompt_scores:
            table = LogprobsTensors.empty_cpu(len(sequence.prompt) - 1, sequence.sampling.prompt_logprobs + 1)
            for tensor in (table.logprob_token_ids, table.logprobs, table.selected_token_ranks):
                tensor.zero_()
            self.prompt_scores[sequence.name] = table
        table = self.prompt_scores[sequence.name]
        end = min(start + len(digests), len(sequence.prompt) - 1)
        if end > start:
            tokens = sequence.prompt[start + 1 : end + 1]
            self.scores.score_prompt(table, start, digests[: end - start], tokens, self.noise_context(sequence))

    def pool(self) -> ModelRunnerOutput:
        """Return the pooled answers of the executed step. Requests whose prompt is not complete get none."""
        names = [one.sequence.name for one in self.request_steps]
        answers = [self.pooled(one.sequence) if one.states else None for one in self.request_steps]
        self.request_steps = []
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[] for _ in names],
            pooler_output=answers,
            kv_connector_output=self.connector_output,
        )

    def pooled(self, sequence: Sequence) -> torch.Tensor:
        """Return the vector of the last state, `[values]`, or those of all computed positions, `[positions, values]`.

        As in a model, a position that came from the cache has none.
        """
        task = sequence.pooling.task
        if task.startswith("token_"):
            return torch.from_numpy(pooled_rows(sequence.states[sequence.first_computed :], task))
        return torch.from_numpy(pooled_rows(sequence.states[-1:], task)[0])

    def sample(self, grammar: Any) -> ModelRunnerOutput:
        """Return the tokens of the executed step. Requests in prefill get none."""
        rows = grammar_rows(grammar, {one.sequence.name: len(one.drafts) for one in self.request_steps})
        answers = [self.sample_request(one, rows.get(one.sequence.name)) for one in self.request_steps]
        wanted = [one.sequence.sampling.logprobs for one in self.request_steps]
        names = [one.sequence.name for one in self.request_steps]
        self.propose_drafts()
        sampled = [one.sequence.name for one in self.request_steps if one.states]
        complete = {name: self.prompt_scores.pop(name) for name in sampled if name in self.prompt_scores}
        self.request_steps = []
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[token.token for token in answer] for answer in answers],
            logprobs=logprobs_of(answers, wanted),
            prompt_logprobs_dict=complete,
            kv_connector_output=self.connector_output,
        )

    def sample_request(self, step: RequestStep, allowed: Any) -> list[SampledToken]:
        """Append and return the next token and, as long as the drafts were correct, the tokens after it."""
        sampled: list[SampledToken] = []
        sequence = step.sequence
        for i, state in enumerate(step.states):
            row, position = None if allowed is None else allowed[i], sequence.length + i
            context = self.noise_context(sequence, position)
            sampled.append(self.scores.sample(state, sequence.sampling, position, context, row))
            if i < len(step.drafts) and sampled[-1].token != step.drafts[i]:
                break
        sequence.output += [one.token for one in sampled]
        return sampled

    def noise_context(self, sequence: Sequence, position: int | None = None) -> bytes:
        """Return what noise may depend on: the batch, and the request and position that are scored."""
        last = int(sequence.digests[-1]) if len(sequence.digests) else 0  # identifies the request, also in another run
        return f"{self.batch} {sequence.length} {last} {position}".encode()

    def propose_drafts(self) -> None:
        """Propose draft tokens for each request, some of them wrong on purpose."""
        if not self.draft_count:
            return
        drifts = self.draft_model.compute((one.sequence, one.start, one.computed_end) for one in self.request_steps)
        ends = [one.sequence for one in self.request_steps if one.states]
        states = [(int(sequence.expected(sequence.seed or 0)[-1]) + drifts[sequence.name]) & MASK for sequence in ends]
        drafts = [draft_tokens(one, state, self.draft_count) for one, state in zip(ends, states, strict=True)]
        self.drafts = DraftTokenIds([sequence.name for sequence in ends], drafts)
        if self.draft_model.layers:
            with set_forward_context(dict.fromkeys(self.tensors), self.config):
                self.save_layers(drafts=True)
                KVConnectorModelRunnerMixin.finalize_kv_connector()


def draft_tokens(sequence: Sequence, state: int, count: int) -> list[int]:
    """Return the tokens of greedy decoding after a state; about one of WRONG_DRAFTS is replaced by a wrong token."""
    drafts: list[int] = []
    for _ in range(count):
        token = token_at_rank(draw(state, seed=None, position=0), 0)
        state = int(sequence.digests_after([token], sequence.length + len(drafts), state)[0])
        wrong = mix_one(state) % WRONG_DRAFTS == 0
        drafts.append(FIRST_TOKEN + (token - FIRST_TOKEN + 1) % TOKENS if wrong else token)
    return drafts
