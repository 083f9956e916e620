"""Calls the kernels of the platform `ascend` on fake tensors of torch_npu's own device, so that torch_npu itself checks
their arguments and says what comes out, without CANN and without an NPU: `python -m tools.npu_shapes`."""
