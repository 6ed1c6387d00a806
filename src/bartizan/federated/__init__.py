"""The laboratory: federated training under attack, on one machine."""
