"""One step of the fingerprint worker: update the requests, read each context, write the new slots, sample.

Each slot that is read is compared with its expected digest. A difference is added to everything that the step computes
for the request, as wrong keys and values would spread through a model: to its next token and to the slots it writes.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.forward_context import set_forward_context
from vllm.v1.outputs import DraftTokenIds, LogprobsTensors, ModelRunnerOutput
from vllm.v1.worker.kv_connector_model_runner_mixin import KVConnectorModelRunnerMixin
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

from coldproof.adapters.common.score_noise import noise_from_environment
from coldproof.adapters.protocol.provenance import WrongRead
from coldproof.adapters.vllm.fingerprint.digest import (
    FIRST_TOKEN,
    MASK,
    TOKENS,
    Digests,
    draw,
    mix_one,
    seed_of,
    token_at_rank,
    wrong_read_drift,
)
from coldproof.adapters.vllm.fingerprint.kv_slots import LayerSlots, first_wrong
from coldproof.adapters.vllm.fingerprint.lora import Loras
from coldproof.adapters.vllm.fingerprint.noisy_scores import NoisyScores
from coldproof.adapters.vllm.fingerprint.sampler import SampledToken, logprobs_of, sample, score_prompt
from coldproof.adapters.vllm.fingerprint.sequences import Sequence, WriteHistory, WriteRecord
from coldproof.adapters.vllm.fingerprint.topology import LayerKind

WRONG_DRAFTS = 4  # on average one draft of this many is wrong on purpose, so that rejection is tested, too


class StepInput(msgspec.Struct):
    """One request of a step before anything is written. The step computes the positions `start` to `end`.

    `expected`: the digests of the request's tokens and drafts. `drift`: what wrong states add to the new digests.
    """

    sequence: Sequence
    content: str | None
    drafts: list[int]
    start: int
    end: int
    expected: Digests
    drift: int


class StepResult(msgspec.Struct):
    """The results of one request: the states after its last known token and after each draft; empty in prefill."""

    sequence: Sequence
    states: list[int]
    drafts: list[int]


class Runner:
    """The requests of the scheduler and the KV tensors that they share."""

    def __init__(
        self,
        config: VllmConfig,
        blocks: int,
        tensors: dict[str, torch.Tensor],
        slots: dict[str, LayerSlots],
        loras: Loras | None,
    ) -> None:
        self.config, self.blocks, self.tensors, self.slots, self.loras = config, blocks, tensors, slots, loras
        self.sequences: dict[str, Sequence] = {}
        self.prompt_scores: dict[str, LogprobsTensors] = {}
        self.writes = WriteHistory()
        self.version = self.step = 0
        self.wrong_reads: list[WrongRead] = []
        self.results: list[StepResult] = []
        self.connector_output: Any = None
        self.draft_count = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
        self.drafts: DraftTokenIds | None = None
        noise = noise_from_environment()
        self.noisy = None if noise is None else NoisyScores(noise)
        self.batch = ""  # describes what the step computes, in order

    def execute(self, scheduled: Any) -> ModelRunnerOutput | None:
        """Execute a step without the sampling. A step without tokens may still move blocks between tiers."""
        self.step += 1
        if has_kv_transfer_group():  # before any write: blocks that get a new owner may still have to be stored
            get_kv_transfer_group().handle_preemptions(scheduled.kv_connector_metadata)
        self.update_requests(scheduled)
        if not scheduled.total_num_scheduled_tokens:
            if not has_kv_transfer_group():
                return ModelRunnerOutput(req_ids=[], req_id_to_index={})
            return KVConnectorModelRunnerMixin.kv_connector_no_forward(scheduled, self.config)
        with (
            set_forward_context(dict.fromkeys(self.tensors), self.config),  # connectors do nothing without metadata
            KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(scheduled) as self.connector_output,
        ):
            self.load_adapters(scheduled)
            self.wait_for_loads()
            inputs = [self.prepare(name, count, scheduled) for name, count in scheduled.num_scheduled_tokens.items()]
            self.batch = repr([(one.start, one.end, int(one.expected[one.end - 1])) for one in inputs])
            self.results = [self.compute(one) for one in inputs]
            self.save()
        return None

    def update_requests(self, scheduled: Any) -> None:
        """Add, update and remove requests as the scheduler says. Zero and copy blocks."""
        for name in scheduled.finished_req_ids:
            self.sequences.pop(name, None)
            self.prompt_scores.pop(name, None)
        if scheduled.new_block_ids_to_zero:
            for tensor in self.tensors.values():
                tensor[scheduled.new_block_ids_to_zero] = 0
        if scheduled.kv_cache_block_copies:
            copy_kv_cache_blocks_inplace(self.tensors.values(), self.blocks, scheduled.kv_cache_block_copies)
        for new in scheduled.scheduled_new_reqs:
            self.sequences[new.req_id] = Sequence(new)
        known = scheduled.scheduled_cached_reqs
        for i, name in enumerate(known.req_ids):
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

    def wait_for_loads(self) -> None:
        """Wait until the connector has loaded what this step reads."""
        if has_kv_transfer_group():
            for name in self.tensors:
                get_kv_transfer_group().wait_for_layer_load(name)

    def save(self) -> None:
        """Pass each layer to the connector."""
        if has_kv_transfer_group():
            for name, tensor in self.tensors.items():
                get_kv_transfer_group().save_kv_layer(name, tensor, None)

    def prepare(self, name: str, count: int, scheduled: Any) -> StepInput:
        """Compute the expected digests of one request and read its states.

        All requests of a step read their states before any of them writes. Keys and values are different: each layer
        writes them before it reads, so a request may hit what another request of the same step writes.
        """
        sequence = self.sequences[name]
        content = self.loras.content(sequence.lora) if self.loras is not None else None
        drafts = [max(0, token) for token in scheduled.scheduled_spec_decode_tokens.get(name, ())]
        expected = sequence.expected(seed_of(content, self.version))
        if drafts:
            expected = np.concatenate([expected, sequence.digests_after(drafts, sequence.length, int(expected[-1]))])
        start = sequence.computed
        drift = self.read_context(sequence, start, expected, states=True)
        return StepInput(sequence, content, drafts, start, start + count, expected, drift)

    def compute(self, step: StepInput) -> StepResult:
        """Read the context in the layers without states, write the new slots of all layers, return the new states."""
        sequence, start, end, expected = step.sequence, step.start, step.end, step.expected
        drift = (step.drift + self.read_context(sequence, start, expected, states=False)) & MASK
        digests = expected[start:end] + np.array([drift], np.uint64)
        for layer in self.slots.values():
            layer.write(sequence.blocks[layer.group], start, digests)
        adapter = sequence.lora.lora_name if sequence.lora is not None else None
        self.writes.add(WriteRecord(sequence.name, adapter, step.content, self.version, start, digests))
        if sequence.sampling.prompt_logprobs is not None and start < len(sequence.prompt):
            self.score_chunk(sequence, start, digests)
        in_prefill = end < sequence.length
        states = [] if in_prefill else [int(state) for state in digests[sequence.length - 1 - start :]]
        return StepResult(sequence, states, step.drafts)

    def read_context(self, sequence: Sequence, start: int, expected: Digests, *, states: bool) -> int:
        """Read the context of the tokens from `start` on, in the layers with states or in the others.

        Return the drift that wrong slots cause: 0 if all slots are correct.
        """
        if not start:
            return 0
        drift = 0
        for number, layer in enumerate(self.slots.values()):
            if (layer.row.kind is LayerKind.STATE) is not states:
                continue
            first = layer.row.first_read(start)
            positions = np.arange(first, start)
            found = layer.read(sequence.blocks[layer.group], first, start)
            bad = found != expected[first:start]
            if bad.any():
                drift += wrong_read_drift(found[bad], expected[first:start][bad], positions[bad]) * (2 * number + 1)
                self.record_wrong_read(sequence, number, layer, positions, found, bad)
        return drift & MASK

    def record_wrong_read(
        self, sequence: Sequence, number: int, layer: LayerSlots, positions: Any, found: Digests, bad: Any
    ) -> None:
        """Record the first wrong read of a request. Later ones are consequences of it."""
        if sequence.wrong_read_recorded:
            return
        sequence.wrong_read_recorded = True
        run = first_wrong(layer.block, sequence.blocks[layer.group], positions, found, bad)
        self.wrong_reads.append(
            WrongRead(
                request=sequence.name,
                step=self.step,
                layer=number,
                group=layer.group,
                **msgspec.structs.asdict(run),
                writer=self.writes.writer(run.found),
            )
        )

    def take_wrong_reads(self) -> list[WrongRead]:
        """Return and remove the recorded wrong reads."""
        taken, self.wrong_reads = self.wrong_reads, []
        return taken

    def score_chunk(self, sequence: Sequence, start: int, digests: Digests) -> None:
        """Score the prompt tokens that follow the tokens of this chunk. The table is returned after the last chunk."""
        if len(sequence.prompt) < 2:
            return
        wanted = sequence.sampling.prompt_logprobs
        if sequence.name not in self.prompt_scores:
            table = LogprobsTensors.empty_cpu(len(sequence.prompt) - 1, wanted + 1)
            for tensor in (table.logprob_token_ids, table.logprobs, table.selected_token_ranks):
                tensor.zero_()
            self.prompt_scores[sequence.name] = table
        table = self.prompt_scores[sequence.name]
        end = min(start + len(digests), len(sequence.prompt) - 1)
        if self.noisy is not None and end > start:
            tokens = sequence.prompt[start + 1 : end + 1]
            self.noisy.score_prompt(table, start, digests[: end - start], tokens, self.noise_context(sequence))
            return
        for i in range(start, end):
            score_prompt(table, i, sequence.prompt[i + 1], int(digests[i - start]), wanted)

    def sample(self, grammar: Any) -> ModelRunnerOutput:
        """Return the tokens of the executed step. Requests in prefill get none."""
        rows = grammar_rows(grammar, {one.sequence.name: len(one.drafts) for one in self.results})
        answers = [
            (self.sample_request(one, rows.get(one.sequence.name)), one.sequence.sampling.logprobs)
            for one in self.results
        ]
        for one, (sampled, _) in zip(self.results, answers, strict=True):
            one.sequence.output += [token.token for token in sampled]
        names = [one.sequence.name for one in self.results]
        self.propose_drafts()
        complete = {
            one.sequence.name: self.prompt_scores.pop(one.sequence.name)
            for one in self.results
            if one.states and one.sequence.name in self.prompt_scores
        }
        self.results = []
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[token.token for token in sampled] for sampled, _ in answers],
            logprobs=logprobs_of(answers),
            prompt_logprobs_dict=complete,
            kv_connector_output=self.connector_output,
        )

    def sample_request(self, result: StepResult, allowed: Any) -> list[SampledToken]:
        """Return the next token and, as long as the drafts were correct, the tokens after it."""
        sampled: list[SampledToken] = []
        sequence = result.sequence
        for i, state in enumerate(result.states):
            row = None if allowed is None else allowed[i]
            position, sampling = sequence.length + i, sequence.sampling
            if self.noisy is None:
                sampled.append(sample(state, sampling, position, row))
            else:
                context = self.noise_context(sequence, position)
                sampled.append(self.noisy.sample(state, sampling, position, context, row))
            if i < len(result.drafts) and sampled[-1].token != result.drafts[i]:
                break
        return sampled

    def noise_context(self, sequence: Sequence, position: int | None = None) -> bytes:
        """Return what noise may depend on: the batch, and the request and position that are scored."""
        last = int(sequence.digests[-1]) if len(sequence.digests) else 0  # identifies the request, also in another run
        return f"{self.batch} {sequence.length} {last} {position}".encode()

    def propose_drafts(self) -> None:
        """Propose draft tokens for each request, some of them wrong on purpose."""
        if not self.draft_count:
            return
        ends = [(one.sequence, one.sequence.expected(one.sequence.seed or 0)) for one in self.results if one.states]
        drafts = [draft_tokens(sequence, int(digests[-1]), self.draft_count) for sequence, digests in ends]
        self.drafts = DraftTokenIds([sequence.name for sequence, _ in ends], drafts)

    def take_drafts(self) -> DraftTokenIds | None:
        """Return and remove the drafts of the last step."""
        drafts, self.drafts = self.drafts, None
        return drafts


def draft_tokens(sequence: Sequence, state: int, count: int) -> list[int]:
    """Return the tokens of greedy decoding after a state; about one of WRONG_DRAFTS is replaced by a wrong token."""
    drafts: list[int] = []
    for _ in range(count):
        token = token_at_rank(draw(state, seed=None, position=0), 0)
        state = int(sequence.digests_after([token], sequence.length + len(drafts), state)[0])
        wrong = mix_one(state) % WRONG_DRAFTS == 0
        drafts.append(FIRST_TOKEN + (token - FIRST_TOKEN + 1) % TOKENS if wrong else token)
    return drafts


def grammar_rows(grammar: Any, drafts: dict[str, int]) -> dict[str, Any]:
    """Return request -> its rows of the grammar's bitmask: one for the next token and one after each draft."""
    rows, at = {}, 0
    for name in grammar.structured_output_request_ids if grammar is not None else ():
        count = 1 + drafts.get(name, 0)
        rows[name] = grammar.grammar_bitmask[at : at + count]
        at += count
    return rows
