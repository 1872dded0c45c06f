"""Temporary evaluation mode, also of compiled models."""

import torch
from compiled import CompiledChain, X, in_place
from compiled import network as compiled_network
from posteriors import filled, move, network


def test_predicting_leaves_the_model_as_it_was() -> None:
    model = network()
    posterior = filled(model)
    move(model, 99)
    model.train()
    model[1].eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    posterior.predict(torch.randn(7, 3))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (model.training, model[0].training, model[1].training) == (True, True, False)


def test_a_model_compiled_in_place_stays_compiled_and_keeps_its_names():
    chain = CompiledChain(in_place).run(2)
    call = chain.model._compiled_call_impl
    chain.posterior.predict(X)
    assert chain.model._compiled_call_impl is call is not None
    assert list(chain.model.state_dict()) == list(compiled_network().state_dict())


def test_predictions_do_not_compile():
    chain = CompiledChain(in_place).run(2)
    torch._dynamo.reset()
    compiled = []
    chain.model._compiled_call_impl = lambda *inputs: compiled.append(inputs)
    chain.posterior.predict(X)
    assert not compiled
