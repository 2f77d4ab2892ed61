"""Grid pipelines: the copies that the compiler puts around the steps of a grid.

An array that a grid walks over in blocks stays in HBM; the kernel sees a window in VMEM or SMEM that holds
the block of the present step.  Windows come in twos, so that the next step's block is on its way during the
body of this one, and a block goes back to HBM during the next body.  All of these are ordinary copies of
the core, with semaphores of the call, so that clock, traces and judges need to know nothing of pipelines.

The windows of one array share one `BufferSpec`, hence its position, name and regions: a step only puts
another window into the core's buffer table.  A whole array in VMEM is a pipeline of one step.

When a block's index is evaluated: for an input with n windows n - 1 steps ahead, before the body of that
step, and with one window after the previous body; for an output after the previous body.
"""

from tpusim.pipeline.loop import Pipeline as Pipeline
from tpusim.pipeline.loop import control_ps as control_ps
from tpusim.pipeline.streams import Dim as Dim
from tpusim.pipeline.streams import IndexMap as IndexMap
from tpusim.pipeline.streams import Stream as Stream
from tpusim.pipeline.streams import add_stream as add_stream
from tpusim.pipeline.streams import block_dims as block_dims
