"""Ensembles of posteriors: several networks, trained together by any optimiser of the library, as one mixture."""

from bayesadam.ensembles.train import train_ensemble as train_ensemble
