"""Links between hosts take the key of the host they wait for, and no other."""

import stat
from pathlib import Path

import attrs
import pytest

from dpactors.net.curve import KeysError, Security, load_keys, make_keys
from dpactors.net.errors import EndpointError
from dpactors.net.notices import Delivered, LinkUp, Refused
from tests.live.deployment import TOPOLOGIES, Deployment, cli, up
from tests.live.networks import Network, over, zmq_of

HOSTS = {"a": "node0", "b": "node1", "c": "node2"}


def keys_in(folder: Path) -> Path:
    make_keys(folder, dict.fromkeys(HOSTS.values()))
    return folder


def security(folder: Path, host: str) -> Security:
    return Security(load_keys(folder, host, dict.fromkeys(HOSTS.values())), HOSTS)


def test_keys_are_their_owners_alone(tmp_path: Path) -> None:
    folder = keys_in(tmp_path / "keys")

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir()} == {0o600}
    assert sorted(one.name for one in folder.iterdir())[:2] == ["node0.key", "node0.key_secret"]
    with pytest.raises(KeysError, match=r"exists"):
        make_keys(folder, ["node0"])
    keyring = load_keys(folder, "node0", HOSTS.values())
    assert keyring.secret.decode() not in repr(keyring)


def test_what_is_wrong_with_keys_names_the_file_and_its_mend(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match=r"is no folder.*dpactors keys new"):
        load_keys(tmp_path / "none", "node0", HOSTS.values())
    folder = keys_in(tmp_path / "keys")
    secret = folder / "node0.key_secret"

    secret.chmod(0o640)
    with pytest.raises(KeysError, match=r"node0.key_secret can be read by others.*chmod 600"):
        load_keys(folder, "node0", HOSTS.values())
    secret.chmod(0o600)
    kept = secret.read_bytes()
    secret.write_bytes((folder / "node1.key_secret").read_bytes())
    with pytest.raises(KeysError, match=r"of two pairs"):
        load_keys(folder, "node0", HOSTS.values())
    secret.write_bytes((folder / "node0.key").read_bytes())
    with pytest.raises(KeysError, match=r"holds no secret key"):
        load_keys(folder, "node0", HOSTS.values())
    secret.write_bytes(kept)
    (folder / "node1.key").write_text("nonsense")
    with pytest.raises(KeysError, match=r"node1.key, the public key of host node1, is no key file"):
        load_keys(folder, "node0", HOSTS.values())
    (folder / "node1.key").unlink()
    with pytest.raises(KeysError, match=r"node1.key.*Copy it here"):
        load_keys(folder, "node0", HOSTS.values())


@over("tcp")
async def test_the_right_keys_carry_messages(network: Network) -> None:
    folder = keys_in(network.folder / "keys")
    a = network.owner("a", security=security(folder, "node0"))
    b = network.owner("b", security=security(folder, "node1"))
    network.join(a, b)
    a.say("b", *range(100))
    b.say("a", *range(100))
    await a.until_got(99)
    await b.until_got(99)
    assert a.numbers() == b.numbers() == list(range(100))


async def turned_away(network: Network, held: Security | None, why: str) -> None:
    """`b` shows the wrong key or none: it delivers nothing and the reason is told; who has the right key is served."""
    a = network.owner("a", security=security(network.folder / "keys", "node0"))
    b = network.owner("b", security=held)
    network.join(a, b)
    b.say("a", *range(50))
    a.say("b", *range(50))
    await a.until_seen(Refused)
    assert why in a.of(Refused)[0].reason
    c = network.owner("c", security=security(network.folder / "keys", "node2"))
    network.join(a, c)
    c.say("a", 7)
    await a.until_got(7)
    assert [one.peer for one in (*a.of(LinkUp), *a.of(Delivered))] == ["c", "c"]
    assert [*b.of(LinkUp), *b.of(Delivered)] == []


@over("tcp")
async def test_a_peer_without_a_key_delivers_nothing(network: Network) -> None:
    keys_in(network.folder / "keys")
    await turned_away(network, None, "speaks no CURVE")


@over("tcp")
async def test_a_peer_with_another_hosts_key_delivers_nothing(network: Network) -> None:
    folder = keys_in(network.folder / "keys")
    await turned_away(network, security(folder, "node2"), "showed another key than host node1's")


@over("tcp")
async def test_a_stranger_who_knows_every_public_key_delivers_nothing(network: Network) -> None:
    known = load_keys(keys_in(network.folder / "keys"), "node0", HOSTS.values()).publics
    strange = load_keys(keys_in(network.folder / "strange"), "node1", HOSTS.values())
    held = Security(attrs.evolve(strange, publics=known), HOSTS)
    await turned_away(network, held, "showed another key than host node1's")


@over("tcp")
async def test_a_host_is_let_in_as_soon_as_its_key_is_mended(network: Network) -> None:
    """ZeroMQ gives up after it was turned away once."""
    folder = keys_in(network.folder / "keys")
    stale = load_keys(keys_in(network.folder / "stale"), "node1", HOSTS.values()).public
    keyring = load_keys(folder, "node0", HOSTS.values())
    publics = {**keyring.publics, "node1": stale}
    a = network.owner("a", security=Security(attrs.evolve(keyring, publics=publics), HOSTS))
    b = network.owner("b", security=security(folder, "node1"))
    network.join(a, b)
    b.say("a", 1)
    await a.until_seen(Refused)
    publics["node1"] = keyring.publics["node1"]
    await a.until_got(1)


@over("tcp")
async def test_a_peer_whose_host_has_no_key_cannot_be_reached(network: Network) -> None:
    a = network.owner("a", security=security(keys_in(network.folder / "keys"), "node0"))
    with pytest.raises(EndpointError, match="no key is known for z's host"):
        zmq_of(a).connect("z", "tcp://127.0.0.1:9", 1)


def test_a_deployment_of_two_hosts_speaks_by_keys_alone(tmp_path: Path) -> None:
    file = str(TOPOLOGIES / "internal_2node.toml")
    keys = tmp_path / "keys"

    missing = cli("up", file, "--set", f"security.keys={keys}", "--run-dir", str(tmp_path / "none"))
    assert (missing.returncode, "dpactors keys new" in missing.stderr) == (2, True), missing.stderr
    made = cli("keys", "new", str(keys), file, "--set", "hosts.node1=203.0.113.7")
    assert made.returncode == 0, "keys are made for a file that is refused for want of them"
    deployment: Deployment
    with up("internal_2node", tmp_path / "run", "--set", f"security.keys={keys}") as deployment:
        answer = deployment.ask(max_tokens=4)
        assert answer.status_code == 200
        secret = next(line for line in (keys / "node0.key_secret").read_text().splitlines() if "secret-key" in line)
        secret = secret.partition('"')[2].rstrip('"')
        for path in (tmp_path / "run").rglob("*"):
            if path.is_file():
                assert secret not in path.read_text(errors="replace"), path
