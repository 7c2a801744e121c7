"""The machinery under every optimiser and population: rules, recorded once; flat state; samples, gradients, steps."""
