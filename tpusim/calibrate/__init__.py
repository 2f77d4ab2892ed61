"""Calibration: a chip's numbers from timings, published ones or those of microbenchmarks on a TPU."""
