"""Slices of chips, the links between them, the routes of copies, and how a mesh lies on a slice."""

from tpusim.topology.layout import Layout, layout_summary, mesh_devices
from tpusim.topology.named import (
    chip_named,
    detour,
    format_coordinates,
    links_named,
    parse_coordinates,
    parse_link,
)
from tpusim.topology.routes import (
    Link,
    Route,
    distance,
    hops,
    link,
    link_index,
    links,
    links_into,
    links_out_of,
    route,
)
from tpusim.topology.slices import CHIPS, Cores, Slice

__all__ = [
    "CHIPS",
    "Cores",
    "Layout",
    "Link",
    "Route",
    "Slice",
    "chip_named",
    "detour",
    "distance",
    "format_coordinates",
    "hops",
    "layout_summary",
    "link",
    "link_index",
    "links",
    "links_into",
    "links_named",
    "links_out_of",
    "mesh_devices",
    "parse_coordinates",
    "parse_link",
    "route",
]
