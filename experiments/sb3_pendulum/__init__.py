"""Parameter-space exploration in unmodified stable-baselines3: DDPG on Pendulum."""

from experiments.sb3_pendulum.experiment import EXPERIMENT as EXPERIMENT
