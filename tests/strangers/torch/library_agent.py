"""PPO of `stable_baselines3`: the loop, the batches and the optimizer are the library's."""

import gymnasium
from stable_baselines3 import PPO
from stable_baselines3.common.utils import set_random_seed

set_random_seed(13)
environment = gymnasium.make("CartPole-v1")
agent = PPO("MlpPolicy", environment, n_steps=64, batch_size=24, n_epochs=2, seed=13, device="cpu",
            policy_kwargs={"net_arch": [16]})  # fmt: skip
agent.learn(192)
history = [float(p.detach().abs().sum()) for p in agent.policy.parameters()]
models = {"policy": agent.policy}
