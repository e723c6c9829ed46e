"""Supervision: starting, watching, replacing and ending the processes of a run or a matrix job."""
