"""For tests of apps and of provider files: a provider simulator and a contract suite."""

from .simulator import ApiFaults, DeliveryFaults, Simulator

__all__ = ["ApiFaults", "DeliveryFaults", "Simulator"]
