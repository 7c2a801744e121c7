"""Uses an installed bayesadam without any extra: trains, saves and loads a posterior, and predicts with it."""

import torch

import bayesadam as ba

model = torch.nn.Linear(3, 1)
opt = ba.BayesAdam(model.named_parameters(), num_data=10, batch_size=10, total_steps=5)
x = torch.linspace(-1, 1, 30).reshape(10, 3)
for _ in range(5):
    with opt.sampled_params():
        opt.zero_grad()
        torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
    opt.step()
opt.posterior(model).save("q.safetensors")
pred = ba.predict(model, ba.load_posterior("q.safetensors"), x, likelihood=ba.Gaussian(4.0), mc_samples=8)
print(ba.__file__, ba.__version__, tuple(pred.mean.shape))
