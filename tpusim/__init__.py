"""Run one TPU DMA program on an ordinary computer: its data, its time and a verdict."""
