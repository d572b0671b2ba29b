"""All Triton kernels, and the PyTorch reference beside each.

A pair `x.py` and `x_triton.py` has the same functions: the reference runs anywhere, the Triton version on CUDA, and
`dispatch` picks one by device. Modules without a reference (`decode_attention`, `decode_ops`, `skinny_gemm`) are used
only by the CUDA decode path, whose reference is the eager decoder of the native engine.
"""
