"""Attribution through secure aggregation, on canary scores: tables and figures measured here."""
