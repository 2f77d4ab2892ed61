"""Every use of JAX internals, in one package: nothing else in tpusim imports a private module of JAX or a private name.

Each module names the versions it was checked on.  A newer jax gives a warning when a program is captured,
never an error at import; a name that it no longer has is an error where a program needs it (see `versions`).
"""

from tpusim.pallas.internals.jaxprs import CALLS as CALLS
from tpusim.pallas.internals.jaxprs import DropVar as DropVar
from tpusim.pallas.internals.jaxprs import Literal as Literal
from tpusim.pallas.internals.jaxprs import all_equations as all_equations
from tpusim.pallas.internals.jaxprs import as_result as as_result
from tpusim.pallas.internals.jaxprs import bind_equation as bind_equation
from tpusim.pallas.internals.jaxprs import callable_of as callable_of
from tpusim.pallas.internals.jaxprs import called_jaxpr as called_jaxpr
from tpusim.pallas.internals.jaxprs import equations_of as equations_of
from tpusim.pallas.internals.jaxprs import is_array as is_array
from tpusim.pallas.internals.jaxprs import is_of_pipeline as is_of_pipeline
from tpusim.pallas.internals.jaxprs import is_placement as is_placement
from tpusim.pallas.internals.jaxprs import is_plain as is_plain
from tpusim.pallas.internals.jaxprs import not_modelled as not_modelled
from tpusim.pallas.internals.jaxprs import open_jaxpr as open_jaxpr
from tpusim.pallas.internals.jaxprs import scan_parts as scan_parts
from tpusim.pallas.internals.jaxprs import sub_jaxprs as sub_jaxprs
from tpusim.pallas.internals.jaxprs import trace_context as trace_context
from tpusim.pallas.internals.jaxprs import type_key as type_key
from tpusim.pallas.internals.jaxprs import where_of_equation as where_of_equation
from tpusim.pallas.internals.jaxprs import where_of_function as where_of_function
from tpusim.pallas.internals.jaxprs import without_refs as without_refs
from tpusim.pallas.internals.refs import NDIndexer as NDIndexer
from tpusim.pallas.internals.refs import RefType as RefType
from tpusim.pallas.internals.refs import Slice as Slice
from tpusim.pallas.internals.refs import TransformedRef as TransformedRef
from tpusim.pallas.internals.refs import choices as choices
from tpusim.pallas.internals.refs import is_ref as is_ref
from tpusim.pallas.internals.refs import pallas_key as pallas_key
from tpusim.pallas.internals.refs import ref_type as ref_type
from tpusim.pallas.internals.refs import view_of as view_of
from tpusim.pallas.internals.versions import warn_if_newer as warn_if_newer
