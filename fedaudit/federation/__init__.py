"""Running a federation: who talks to whom, local training, aggregation, the round loop."""
