"""Triton kernels, each with the values of a definition in torch; imported on CUDA only."""
