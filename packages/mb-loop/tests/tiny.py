"""Small torch model with data and a forward step, for tests."""

import torch


def make_model(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.25), torch.nn.Linear(8, 1))
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def batch(index):
    """Return microbatch number `index` of an infinite stream."""
    random = torch.Generator().manual_seed(index)
    inputs = torch.randn(2, 3, generator=random)
    return inputs, inputs.sum(dim=1, keepdim=True)


def batches(start=0, end=10**9):
    return (batch(index) for index in range(start, end))


def forward_step(iterator, model):
    inputs, targets = next(iterator)

    def loss_function(outputs):
        loss = (outputs - targets).square().mean()
        return loss, {"loss": loss.detach()}

    return model(inputs), loss_function
