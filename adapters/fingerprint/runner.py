"""One step of the engine: take in what the scheduler says, read each request's context, write its new slots, sample.

What is read and what ought to be there are compared slot by slot. A difference is added to all that the step computes
for the request, as wrong keys and values would spread through a model: into its token, and into what it writes.
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

from adapters.fingerprint.digest import FIRST_TOKEN, MASK, TOKENS, Digests, draw, mix_one, ranked, seed_of, wrong
from adapters.fingerprint.loras import Loras
from adapters.fingerprint.noisy import NoisyScores
from adapters.fingerprint.sampler import Drawn, logprobs_of, sample, score_prompt
from adapters.fingerprint.sequences import Memory, Sequence, Written
from adapters.fingerprint.slots import LayerSlots, first_wrong
from adapters.fingerprint.topology import Kind
from adapters.noise import chosen
from adapters.provenance import WrongRead

WRONG_DRAFTS = 4  # one draft of so many is wrong on purpose: rejection is a path of its own


class Begun(msgspec.Struct):
    """A request's step before anything is written: what its tokens ought to be, and what wrong states add to them."""

    sequence: Sequence
    content: str | None
    drafts: list[int]
    start: int
    end: int
    expected: Digests
    drift: int


class Computed(msgspec.Struct):
    """What a step made of one request: the states behind its last known token and each draft."""

    sequence: Sequence
    states: list[int]
    drafts: list[int]


class Runner:
    """All requests that the scheduler has told of, and the pool they share."""

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
        self.scores: dict[str, LogprobsTensors] = {}
        self.memory = Memory()
        self.version = self.step = 0
        self.told: list[WrongRead] = []
        self.pending: list[Computed] = []
        self.transferred: Any = None
        self.drafting = config.speculative_config.num_speculative_tokens if config.speculative_config else 0
        self.drafts: DraftTokenIds | None = None
        noise = chosen()
        self.noisy = None if noise is None else NoisyScores(noise)
        self.company = ""  # what the step computes, in its order

    def execute(self, scheduled: Any) -> ModelRunnerOutput | None:
        """Everything but the sampling. A step without tokens may still move blocks between tiers."""
        self.step += 1
        if has_kv_transfer_group():  # before anything is written: blocks that change hands may still have to be stored
            get_kv_transfer_group().handle_preemptions(scheduled.kv_connector_metadata)
        self.take_in(scheduled)
        if not scheduled.total_num_scheduled_tokens:
            if not has_kv_transfer_group():
                return ModelRunnerOutput(req_ids=[], req_id_to_index={})
            return KVConnectorModelRunnerMixin.kv_connector_no_forward(scheduled, self.config)
        with (
            set_forward_context(dict.fromkeys(self.tensors), self.config),  # connectors do nothing without metadata
            KVConnectorModelRunnerMixin.maybe_get_kv_connector_output(scheduled) as self.transferred,
        ):
            self.load_adapters(scheduled)
            self.wait_for_loads()
            begun = [self.begin(name, count, scheduled) for name, count in scheduled.num_scheduled_tokens.items()]
            self.company = repr([(one.start, one.end, int(one.expected[one.end - 1])) for one in begun])
            self.pending = [self.compute(one) for one in begun]
            self.save()
        return None

    def take_in(self, scheduled: Any) -> None:
        """Requests that ended, begin, go on or come back; blocks that are to be zeroed or copied."""
        for name in scheduled.finished_req_ids:
            self.sequences.pop(name, None)
            self.scores.pop(name, None)
        if scheduled.new_block_ids_to_zero:
            for tensor in self.tensors.values():
                tensor[scheduled.new_block_ids_to_zero] = 0
        if scheduled.kv_cache_block_copies:
            copy_kv_cache_blocks_inplace(self.tensors.values(), self.blocks, scheduled.kv_cache_block_copies)
        for new in scheduled.scheduled_new_reqs:
            self.sequences[new.req_id] = Sequence(new)
        known = scheduled.scheduled_cached_reqs
        for i, name in enumerate(known.req_ids):
            self.sequences[name].resume(
                known.new_block_ids[i],
                resumed=name in known.resumed_req_ids,
                computed=known.num_computed_tokens[i],
                outputs=known.num_output_tokens[i],
            )

    def load_adapters(self, scheduled: Any) -> None:
        """Every adapter of the step is touched, in the order of vLLM's own worker: that of a set."""
        if self.loras is not None:
            wanted = {self.sequences[name].lora for name in scheduled.num_scheduled_tokens} - {None}
            for request in sorted(wanted, key=lambda one: one.lora_int_id):
                self.loras.add(request)

    def wait_for_loads(self) -> None:
        """Let the connector finish what this step reads."""
        if has_kv_transfer_group():
            for name in self.tensors:
                get_kv_transfer_group().wait_for_layer_load(name)

    def save(self) -> None:
        """Offer each layer to the connector."""
        if has_kv_transfer_group():
            for name, tensor in self.tensors.items():
                get_kv_transfer_group().save_kv_layer(name, tensor, None)

    def begin(self, name: str, count: int, scheduled: Any) -> Begun:
        """One request's step up to its states, which all requests of a step read before any of them writes. Keys and
        values are written layer by layer before they are read: what another request of the step writes may be hit.
        """
        one = self.sequences[name]
        content = self.loras.content(one.lora) if self.loras is not None else None
        drafts = [max(0, token) for token in scheduled.scheduled_spec_decode_tokens.get(name, ())]
        expected = one.expected(seed_of(content, self.version))
        if drafts:
            expected = np.concatenate([expected, one.behind(drafts, one.length, int(expected[-1]))])
        start = one.computed
        drift = self.read(one, start, expected, states=True)
        return Begun(one, content, drafts, start, start + count, expected, drift)

    def compute(self, begun: Begun) -> Computed:
        """The rest of it: read what lies before in all other layers, write the new slots in each."""
        one, start, end, expected = begun.sequence, begun.start, begun.end, begun.expected
        drift = (begun.drift + self.read(one, start, expected, states=False)) & MASK
        digests = expected[start:end] + np.array([drift], np.uint64)
        for layer in self.slots.values():
            layer.write(one.blocks[layer.group], start, digests)
        adapter = one.lora.lora_name if one.lora is not None else None
        self.memory.note(Written(one.name, adapter, begun.content, self.version, start, digests))
        if one.sampling.prompt_logprobs is not None and start < len(one.prompt):
            self.score(one, start, digests)
        behind = [] if end < one.length else [int(state) for state in digests[one.length - 1 - start :]]
        return Computed(one, behind, begun.drafts)

    def read(self, one: Sequence, start: int, expected: Digests, *, states: bool) -> int:
        """Read all that the tokens from `start` on build upon, in the layers that keep states or in the others; what it
        adds to them: 0 where all is as it should be.
        """
        if not start:
            return 0
        drift = 0
        for number, layer in enumerate(self.slots.values()):
            if (layer.row.kind is Kind.STATE) is not states:
                continue
            first = layer.row.first_read(start)
            positions = np.arange(first, start)
            found = layer.read(one.blocks[layer.group], first, start)
            bad = found != expected[first:start]
            if bad.any():
                drift += wrong(found[bad], expected[first:start][bad], positions[bad]) * (2 * number + 1)
                self.tell(one, number, layer, positions, found, bad)
        return drift & MASK

    def tell(self, one: Sequence, number: int, layer: LayerSlots, positions: Any, found: Digests, bad: Any) -> None:
        """Remember the first wrong read of a request: what it spoils afterwards is no news."""
        if one.told_wrong:
            return
        one.told_wrong = True
        run = first_wrong(layer.block, one.blocks[layer.group], positions, found, bad)
        self.told.append(
            WrongRead(
                request=one.name,
                step=self.step,
                layer=number,
                group=layer.group,
                **msgspec.structs.asdict(run),
                writer=self.memory.writer(run.found),
            )
        )

    def take_wrong_reads(self) -> list[WrongRead]:
        """Those since this was last asked."""
        told, self.told = self.told, []
        return told

    def score(self, one: Sequence, start: int, digests: Digests) -> None:
        """Score the prompt's tokens that this chunk stands before; the table is told when the prompt is through."""
        if len(one.prompt) < 2:
            return
        wanted = one.sampling.prompt_logprobs
        if one.name not in self.scores:
            table = LogprobsTensors.empty_cpu(len(one.prompt) - 1, wanted + 1)
            for tensor in (table.logprob_token_ids, table.logprobs, table.selected_token_ranks):
                tensor.zero_()
            self.scores[one.name] = table
        end = min(start + len(digests), len(one.prompt) - 1)
        if self.noisy is not None and end > start:
            tokens = one.prompt[start + 1 : end + 1]
            self.noisy.prompt(self.scores[one.name], start, digests[: end - start], tokens, self.beside(one))
            return
        for i in range(start, end):
            score_prompt(self.scores[one.name], i, one.prompt[i + 1], int(digests[i - start]), wanted)

    def sample(self, grammar: Any) -> ModelRunnerOutput:
        """The tokens of the step that was computed, those of requests in prefill left out."""
        rows = grammar_rows(grammar, {one.sequence.name: len(one.drafts) for one in self.pending})
        answers = [
            (self.answer(one, rows.get(one.sequence.name)), one.sequence.sampling.logprobs) for one in self.pending
        ]
        for one, (drawn, _) in zip(self.pending, answers, strict=True):
            one.sequence.output += [d.token for d in drawn]
        names = [one.sequence.name for one in self.pending]
        self.propose()
        done = {
            one.sequence.name: self.scores.pop(one.sequence.name)
            for one in self.pending
            if one.states and one.sequence.name in self.scores
        }
        self.pending = []
        return ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            sampled_token_ids=[[d.token for d in drawn] for drawn, _ in answers],
            logprobs=logprobs_of(answers),
            prompt_logprobs_dict=done,
            kv_connector_output=self.transferred,
        )

    def answer(self, one: Computed, allowed: Any) -> list[Drawn]:
        """The next token, and those after it for as long as the drafts were right."""
        drawn: list[Drawn] = []
        for i, state in enumerate(one.states):
            row = None if allowed is None else allowed[i]
            position, sampling = one.sequence.length + i, one.sequence.sampling
            if self.noisy is None:
                drawn.append(sample(state, sampling, position, row))
            else:
                drawn.append(self.noisy.sample(state, sampling, position, self.beside(one.sequence, position), row))
            if i < len(one.drafts) and drawn[-1].token != one.drafts[i]:
                break
        return drawn

    def beside(self, one: Sequence, position: int | None = None) -> bytes:
        """What noise may depend on: all that the step computes, and whose scores these are."""
        return f"{self.company} {one.length} {self.expected_end(one)} {position}".encode()

    def expected_end(self, one: Sequence) -> int:
        """What tells a request from the others of its step, and is the same whenever it is computed."""
        return int(one.digests[-1]) if len(one.digests) else 0

    def propose(self) -> None:
        """Drafts of what comes next, some of them wrong on purpose."""
        if not self.drafting:
            return
        made = [(one.sequence, one.sequence.expected(one.sequence.seed or 0)) for one in self.pending if one.states]
        names = [one.name for one, _ in made]
        self.drafts = DraftTokenIds(names, [guess(one, int(digests[-1]), self.drafting) for one, digests in made])

    def take_drafts(self) -> DraftTokenIds | None:
        """The last step's, once."""
        drafts, self.drafts = self.drafts, None
        return drafts


def guess(one: Sequence, state: int, count: int) -> list[int]:
    """The tokens that greedy decoding would give behind a state, one of WRONG_DRAFTS of them changed."""
    drafts: list[int] = []
    for _ in range(count):
        token = ranked(draw(state, seed=None, position=0), 0)
        state = int(one.behind([token], one.length + len(drafts), state)[0])
        changed = mix_one(state) % WRONG_DRAFTS == 0
        drafts.append(FIRST_TOKEN + (token - FIRST_TOKEN + 1) % TOKENS if changed else token)
    return drafts


def grammar_rows(grammar: Any, drafts: dict[str, int]) -> dict[str, Any]:
    """Request -> its rows of the grammar's bitmask: one for the next token and one behind each draft."""
    rows, at = {}, 0
    for name in grammar.structured_output_request_ids if grammar is not None else ():
        count = 1 + drafts.get(name, 0)
        rows[name] = grammar.grammar_bitmask[at : at + count]
        at += count
    return rows
