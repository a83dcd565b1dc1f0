"""mlx-lm 0.32.2: a prompt that is kept whole ends the thread that generates. Exit status 1: the bug."""

from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import LRUPromptCache
from mlx_lm.models.llama import Model, ModelArgs

sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 2}
model = Model(ModelArgs(model_type="llama", rms_norm_eps=1e-5, vocab_size=64, **sizes))
kept, generator = LRUPromptCache(), BatchGenerator(model)


def sequence_of(prompt):  # as ResponseGenerator._generate serves a request that joins a batch
    cache, rest = kept.fetch_nearest_cache("model", prompt)
    generator.insert_segments([[rest] if rest else []], max_tokens=[3], caches=[cache], all_tokens=[[]])
    while not (done := [one for one in generator.next()[1] if one.finish_reason]):
        pass
    kept.insert_cache("model", done[0].all_tokens[:], done[0].prompt_cache)
    return done[0].all_tokens


try:  # the prompt with its answer, sent again as a prompt
    print("the same sequence as a prompt: answered; expected:", bool(sequence_of(sequence_of([1, 2, 3, 4]))))
except ValueError as problem:
    raise SystemExit(f"the same sequence as a prompt: {problem} It is expected to be answered") from problem
