"""Figures 3 to 6 and table II of *Topology-Aware Differential Privacy in Federated Learning*."""
