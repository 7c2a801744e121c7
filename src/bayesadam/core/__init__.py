"""What every optimiser and population is built on: recorded rules, state in flat vectors, samples, gradients and
steps.
"""
