"""`model.py`: what a folder of Triton's model repository holds beside an engine."""
