"""A functional JAX inference engine for hybrid-attention language models on NVIDIA V100 and newer."""
