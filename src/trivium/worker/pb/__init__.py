"""What a `model.py` imports as `triton_python_backend_utils`: our own implementation of the names and rules of Triton's Python back end.

The names are Triton's, so that a model written for it runs unchanged (https://github.com/triton-inference-server/python_backend).
"""
