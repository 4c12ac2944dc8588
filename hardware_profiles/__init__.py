"""Hardware profiles: one YAML document per system, schema, loader, and placement of communication groups."""

from hardware_profiles.changes import apply_overlay, apply_overrides
from hardware_profiles.efficiencies import EFFICIENCY_TERMS
from hardware_profiles.errors import ProfileError
from hardware_profiles.loader import list_profiles, load_profile, nearest_profiles, no_profile, profile_hash, registered
from hardware_profiles.profile import Profile
from hardware_profiles.schema import KINDS, ProfileDocument, Quantity
from hardware_profiles.topology import ClusterTopology, cluster_topology

__all__ = [
    "EFFICIENCY_TERMS",
    "KINDS",
    "ClusterTopology",
    "Profile",
    "ProfileDocument",
    "ProfileError",
    "Quantity",
    "apply_overlay",
    "apply_overrides",
    "cluster_topology",
    "list_profiles",
    "load_profile",
    "nearest_profiles",
    "no_profile",
    "profile_hash",
    "registered",
]
