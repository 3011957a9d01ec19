"""Names of machines against Google's and NVIDIA's pages, and collectives computed by hand."""

import pytest
from train_steps import gpt

from t5like.errors import UserError, command_line
from t5like.planning import StateBytes, parse_topology, price_of
from t5like.planning.collectives import LINK_EFFICIENCY, step_collectives
from t5like.planning.operations import DeviceShare
from t5like.planning.topology import CHIPS, local_chip


# v4 and v5p slices count TensorCores (v5p-512 is the 4x8x8 slice of 256 chips on 64 hosts), v5e and v6e chips.
@pytest.mark.parametrize(
  "name, kind, devices, groups",
  [
    ("v5p-512", "TPU v5p", 256, 1),
    ("v4-8", "TPU v4", 4, 1),
    ("v5e-256", "TPU v5e", 256, 1),
    ("v6e-16", "TPU v6e", 16, 1),
    ("4xv5p-128", "TPU v5p", 256, 4),
    ("h100x8", "NVIDIA H100 80GB HBM3", 8, 1),
    ("2xh100x8", "NVIDIA H100 80GB HBM3", 16, 2),
    ("H200", "NVIDIA H200", 1, 1),
  ],
)
def test_machines_by_name(name, kind, devices, groups):
  topology = parse_topology(name)
  assert (topology.chip.device_kind, topology.devices, topology.groups) == (kind, devices, groups)


def test_v5e_has_two_names():
  assert parse_topology("2xv5litepod-16").devices == parse_topology("2xv5e-16").devices == 32


@pytest.mark.parametrize(
  "name, message",
  [
    ("v5q-8", "v5p"),
    ("v5p-511", "multiple of 2"),
    ("v5p", "--topology=v5p-16"),
    ("h100-8", "--topology=h100x8"),
    ("h100x16", "--topology=2xh100x8"),
    ("v5e-512", "--topology=2xv5e-256"),
    ("0xv5e-4", "'0xv5e-4' has no chips"),
    ("v5e-17", "a power of 2, up to 256"),
    ("h100x0", "at least one machine"),
    ("a laptop", "local"),
  ],
)
def test_invalid_names_are_rejected(name, message):
  with pytest.raises(UserError) as error:
    parse_topology(name)
  with command_line():
    assert message in error.value.render()


def test_this_machine_is_measured():
  local = parse_topology("local")
  assert local.devices == 8 and local.chip.platform == "cpu"
  # Eight fake devices share one machine: all of them together are far below an accelerator, and above 1 GFLOP/s.
  assert 1e9 < 8 * local.chip.spec.flops < 20e12
  assert 1e9 < 8 * local.chip.spec.memory < 4e13


def test_links_by_hand():
  # Google's pages: v5p 1,200 GB/s both ways over six links; a ring along one of its three axes has two of them.
  pod = parse_topology("v5p-512")
  assert pod.bandwidth(256, 256)[1] == 600e9 and pod.bandwidth(4, 4)[1] == 200e9
  # A v6e-16 is a 4x4 mesh without wraparound links: half of 400 GB/s.
  assert parse_topology("v6e-16").bandwidth(16, 16)[1] == 200e9
  assert parse_topology("2xh100x8").bandwidth(8, 8)[0].name == "NVLink"
  assert parse_topology("2xh100x8").bandwidth(2, 16)[0].name == "InfiniBand"


STATE = StateBytes(parameters=800, optimizer=0, weights=400, layer_weights=100, variables=1)


def collectives(topology: str, mesh: tuple[int, int, int], **fields):
  model = gpt(2, compute_dtype="bfloat16", **fields)
  share = DeviceShare(rows=2, encoder_length=0, decoder_length=64, tensor=mesh[2])
  sizes = dict(zip(("data", "fsdp", "tensor"), mesh, strict=True))
  return step_collectives(model.config, share, sizes, STATE, 1, parse_topology(topology))


def test_a_data_parallel_step_sums_its_gradients():
  (only,) = collectives("h100x8", (8, 1, 1))
  # A ring all-reduce of 800 bytes over eight: each device sends 2 * 800 * 7 / 8.
  assert (only.link, only.bytes, only.waits) == ("NVLink", 1400, False)


def test_only_a_shard_of_the_gradients_is_sent_between_slices():
  inside, between = collectives("4xv5e-16", (64, 1, 1))
  assert (inside.link, inside.devices, inside.bytes) == ("ICI", 16, 2 * 800 * 15 / 16)
  # After the sum within a slice, each of its sixteen chips exchanges its sixteenth with three others.
  assert (between.link, between.devices, between.bytes) == ("DCN", 4, 2 * 800 / 16 * 3 / 4)
  # Gradients of layers in a loop are summed after the loop.
  assert not between.waits and all(c.waits for c in collectives("4xv5e-16", (64, 1, 1), scan_layers=True))
  # 25 Gbit/s per chip.
  assert between.seconds == pytest.approx(75 / (25e9 / 8 * LINK_EFFICIENCY) + 8 * 100e-6)


def test_fsdp_gathers_weights_twice_for_a_loop_over_layers():
  gathered, scattered = collectives("h100x8", (1, 8, 1))
  assert (gathered.bytes, scattered.bytes) == (350, 350)
  assert collectives("h100x8", (1, 8, 1), scan_layers=True, layer_loop="loop")[0].bytes == 700
  # A TPU loops over stacked layers, a GPU does not.
  assert collectives("v5e-8", (1, 8, 1), scan_layers=True)[0].bytes == 700
  assert collectives("h100x8", (1, 8, 1), scan_layers=True)[0].bytes == 350


def test_tensor_parallelism_sums_two_results_per_layer_and_pass():
  layers, embedding, output = collectives("h100x8", (1, 1, 8))
  stream = 2 * 64 * 256 * 2  # rows x positions x width x bfloat16
  assert layers.bytes == 2 * stream * 7 / 8 * 2 * 2 * 2 and layers.waits  # layers, sublayers, forward and backward
  assert embedding.bytes == output.bytes == 2 * stream * 7 / 8
  # Rematerialization sums attention's result once more; the last result of a layer is not recomputed.
  recomputed = collectives("h100x8", (1, 1, 8), remat="full")[0]
  assert recomputed.bytes == pytest.approx(layers.bytes * 5 / 4)


def test_experts_on_other_machines_are_reached_over_the_network():
  model = gpt(2, compute_dtype="bfloat16", use_bias=False, num_experts=4)
  share = DeviceShare(rows=2, encoder_length=0, decoder_length=64, tensor=8)
  sizes = {"data": 1, "fsdp": 1, "tensor": 8, "expert": 2}
  found = step_collectives(model.config, share, sizes, STATE, 1, parse_topology("2xh100x8"))
  links = {(each.name, each.link) for each in found if each.axis == "expert"}
  assert links == {("move tokens to experts", "InfiniBand"), ("sum gradients", "InfiniBand")}


def test_a_price_by_hand():
  price = price_of(100.0, CHIPS["h100"], dollars_per_hour=2.0, pue=1.2, co2e=0.5)
  energy = 100 * 0.700 * 0.85 * 1.35 * 1.2
  assert price.dollars == 200 and price.kilowatt_hours == pytest.approx(energy)
  assert price.kilograms == pytest.approx(0.5 * energy)
  # Eight busy GPUs are below the 10.2 kW that a DGX H100 is rated for.
  assert 5.6 < 8 * 0.700 * 0.85 * 1.35 < 10.2
  assert price_of(1.0, CHIPS["v5e"]).dollars == 1.20
  unknown = price_of(1.0, local_chip())
  assert unknown.dollars is None and unknown.kilowatt_hours is None
