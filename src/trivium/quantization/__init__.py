"""Making quantized checkpoints: `trivium quantize`. `python -m trivium.quantization` does one job, given as JSON on standard input.

AWQ (https://arxiv.org/abs/2306.00978) and GPTQ (https://arxiv.org/abs/2210.17323) look at what a calibration text makes of each layer's inputs;
NF4 and FP8 round each weight by itself. Nothing here is part of serving.
"""
