"""A tiny stand-in for a published model, by the transformers library: make_model.py FOLDER."""

import sys

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

torch.manual_seed(0)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "head_dim": 16}
heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
model = Qwen3ForCausalLM(Qwen3Config(vocab_size=256, max_position_embeddings=128, **sizes, **heads))
model.save_pretrained(sys.argv[1])
