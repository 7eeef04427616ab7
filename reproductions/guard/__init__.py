"""Error rates of `fedaudit guard`: honest runs for its calibration, others for false alarms,
planted and disguised models for detection.

    python -m reproductions.guard.run calibrate     # writes the table that comes with fedaudit
    python -m reproductions.guard.run evaluate      # writes reproductions/guard/results.json
"""
