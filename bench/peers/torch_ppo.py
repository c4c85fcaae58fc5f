"""Proximal policy optimization on CartPole-v1 by PyTorch and Gymnasium, as single-file implementations usually write it: 4
environments, 128 steps, 4 minibatches, 4 epochs, two tanh layers of 64, Adam at 2.5e-4 that falls to zero. Prints one line of JSON
with how many steps of all environments it took a second, learning included.

usage: python bench/peers/torch_ppo.py [--steps N] [--threads N] [--seed N]        (needs torch and gymnasium)
"""

import argparse
import json
import resource
import time

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

ENVIRONMENTS, STEPS, EPOCHS, MINIBATCHES = 4, 128, 4, 4
RATE, DISCOUNT, TRACE, RATIO, ENTROPY, VALUE, LARGEST_NORM = 2.5e-4, 0.99, 0.95, 0.2, 0.01, 0.5, 0.5


def layer(inputs, outputs, gain=2**0.5):
    linear = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def network(inputs, outputs, gain):
    return nn.Sequential(layer(inputs, 64), nn.Tanh(), layer(64, 64), nn.Tanh(), layer(64, outputs, gain))


def advantages(rewards, values, ended, last_value, last_ended):
    """Generalised advantages. `ended[t]` says whether what is seen at t is the first of an episode."""
    found, following = torch.zeros_like(rewards), 0.0
    for step in reversed(range(STEPS)):
        after, ends = (last_value, last_ended) if step == STEPS - 1 else (values[step + 1], ended[step + 1])
        goes_on = 1.0 - ends
        following = rewards[step] + DISCOUNT * after * goes_on - values[step] + DISCOUNT * TRACE * goes_on * following
        found[step] = following
    return found


def losses(actor, critic, rows):
    observations, actions, before, values_before, advantage, returns = rows
    choice = Categorical(logits=actor(observations))
    ratio = (choice.log_prob(actions) - before).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    of_actions = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - RATIO, 1 + RATIO)).mean()
    values = critic(observations).flatten()
    near = values_before + (values - values_before).clamp(-RATIO, RATIO)
    of_values = 0.5 * torch.max((values - returns) ** 2, (near - returns) ** 2).mean()
    return of_actions - ENTROPY * choice.entropy().mean() + VALUE * of_values


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_480)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    torch.manual_seed(asked.seed)
    environments = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("CartPole-v1")) for _ in range(ENVIRONMENTS)]
    )
    width = environments.single_observation_space.shape[0]
    actor, critic = network(width, 2, 0.01), network(width, 1, 1.0)
    weights = [*actor.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(weights, lr=RATE, eps=1e-5)

    observations = torch.zeros(STEPS, ENVIRONMENTS, width)
    actions, log_probabilities, rewards, values, ended = (torch.zeros(STEPS, ENVIRONMENTS) for _ in range(5))
    seen, _ = environments.reset(seed=asked.seed)
    seen, ends = torch.tensor(seen), torch.zeros(ENVIRONMENTS)
    rollouts = asked.steps // (ENVIRONMENTS * STEPS)
    begun = time.perf_counter()
    for rollout in range(rollouts):
        adam.param_groups[0]["lr"] = RATE * (1.0 - rollout / rollouts)
        for step in range(STEPS):
            observations[step], ended[step] = seen, ends
            with torch.no_grad():
                choice = Categorical(logits=actor(seen))
                action = choice.sample()
                values[step] = critic(seen).flatten()
            actions[step], log_probabilities[step] = action, choice.log_prob(action)
            seen, reward, terminated, truncated, _ = environments.step(action.numpy())
            rewards[step] = torch.tensor(reward)
            seen, ends = torch.tensor(seen), torch.tensor(np.logical_or(terminated, truncated), dtype=torch.float32)
        with torch.no_grad():
            found = advantages(rewards, values, ended, critic(seen).flatten(), ends)
        fields = [observations, actions, log_probabilities, values, found, found + values]
        flat = [field.reshape(STEPS * ENVIRONMENTS, *field.shape[2:]) for field in fields]
        order = np.arange(STEPS * ENVIRONMENTS)
        for _ in range(EPOCHS):
            np.random.shuffle(order)
            for chosen in np.split(order, MINIBATCHES):
                adam.zero_grad()
                losses(actor, critic, [field[chosen] for field in flat]).backward()
                nn.utils.clip_grad_norm_(weights, LARGEST_NORM)
                adam.step()
    seconds = time.perf_counter() - begun
    taken = rollouts * ENVIRONMENTS * STEPS
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"steps": taken, "seconds": seconds, "steps_per_second": taken / seconds, "peak_memory": memory}))


if __name__ == "__main__":
    main()
