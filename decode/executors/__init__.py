"""Executors turn a StepPlan into a StepResult. They own tensors (or predictions), never policy."""
