"""A Llama of random weights that runs in no time."""

import mlx.core as mx
from mlx_lm.models import llama

VOCAB = 61


def tiny_llama(*, traditional: bool = False) -> llama.Model:
    """Two layers of four heads, of which two share keys. `traditional`: how its rotary embeddings pair elements."""
    mx.random.seed(2)
    args = llama.ModelArgs("llama", 32, 2, 48, 4, 1e-5, VOCAB, num_key_value_heads=2, rope_traditional=traditional)
    model = llama.Model(args)
    mx.eval(model.parameters())
    return model
