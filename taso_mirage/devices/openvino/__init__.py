"""The options of OpenVINO."""
