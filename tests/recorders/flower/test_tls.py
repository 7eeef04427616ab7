"""A deployment that is spoken to by TLS: certificates of our own making, on loopback."""

import datetime
import ipaddress
from pathlib import Path

import numpy as np
import pytest

from fedaudit.errors import TraceError, UsageError
from fedaudit.trace import Trace

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedaudit[flower]"')

from fedaudit.recorders.flower.runtime import choose_engine, is_loopback
from fedaudit.study import run

ROOT = Path(__file__).resolve().parents[3]
SMALL = {
    "seed": 11,
    "data": {"name": "digits"},
    "federation": {"clients": 2, "rounds": 1},
    "training": {"epochs": 1},
    "audits": {"coverage": {}},
}


def certificates(folder, name):
    """A root of its own and a certificate for this machine that it has signed, as PEM files."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder.mkdir()
    now = datetime.datetime.now(datetime.UTC)

    def subject(text):
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def signed(text, key, by, by_key, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject(text))
            .issuer_name(subject(by))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(by_key.public_key()), False
            )
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(by_key, hashes.SHA256())

    root_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    uses = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = signed(
        name,
        root_key,
        name,
        root_key,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (uses, True),
    )
    here = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    own = signed("link", key, name, root_key, (here, False))
    pem = serialization.Encoding.PEM
    (folder / "root.pem").write_bytes(root.public_bytes(pem))
    (folder / "link.pem").write_bytes(own.public_bytes(pem))
    (folder / "link.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder


def test_models_do_not_leave_the_machine_in_the_clear_unless_told(tmp_path):
    pem = certificates(tmp_path / "own", "fedaudit test root") / "root.pem"
    for address in ("127.0.0.1:9093", "localhost:9093", "[::1]:9093", "127.1.2.3:1"):
        assert is_loopback(address)
        assert choose_engine("flower", address).root_certificates is None
    for address in ("10.0.0.7:9093", "link.example.org:9093", "[2001:db8::1]:9093"):
        assert not is_loopback(address)
        with pytest.raises(UsageError, match="in the clear"):
            choose_engine("flower", address)
        assert choose_engine("flower", address, insecure=True).root_certificates is None
        assert (
            choose_engine("flower", address, root_certificates=pem).root_certificates
            == pem.resolve()
        )
    with pytest.raises(UsageError, match="either secured or not"):
        choose_engine("flower", "10.0.0.7:9093", root_certificates=pem, insecure=True)
    with pytest.raises(UsageError, match="need its address"):
        choose_engine("flower", None, root_certificates=pem)
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\n")
    (tmp_path / "other.pem").write_bytes(b"\xff\xfe")
    for wrong in ("gone.pem", "key.pem", "other.pem"):
        with pytest.raises(UsageError, match="does not hold root certificates"):
            choose_engine("flower", "10.0.0.7:9093", root_certificates=tmp_path / wrong)


# -- on loopback -----------------------------------------------------------------------------------


@pytest.mark.nightly
def test_a_deployment_with_certificates_of_its_own(start, port, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    own = certificates(tmp_path / "own", "fedaudit test root")
    others = certificates(tmp_path / "others", "another test root")
    link = port.free()
    secured = ("--ssl-certfile", own / "link.pem", "--ssl-keyfile", own / "link.key")
    secured = (*secured, "--ssl-ca-certfile", own / "root.pem")
    start(
        "link",
        "flower-superlink",
        *("--host", "127.0.0.1", "--port", link, "--disable-runtime-dependency-installation"),
        *secured,
    )
    port.wait_for(link)
    for number in range(2):
        start(
            f"node-{number}",
            "flower-supernode",
            *("--superlink", f"127.0.0.1:{link}", "--root-certificates", own / "root.pem"),
            *("--host", "127.0.0.1", "--port", port.free(), *secured),
            *("--node-config", f"partition-id={number} num-partitions=2"),
        )
    address = f"127.0.0.1:{link}"
    engine = choose_engine("flower", address, 120.0, root_certificates=own / "root.pem")
    run(SMALL, tmp_path / "deployed", engine=engine)
    run(SMALL, tmp_path / "local")
    one, other = (Trace.open(tmp_path / n / "trace") for n in ("local", "deployed"))
    assert one.messages(1) == other.messages(1)
    assert np.abs(one.block(1) - other.block(1)).max() <= 1e-5
    # a root that does not vouch for it, and none at all: nothing is handed over
    for wrong in ({"root_certificates": others / "root.pem"}, {}):
        with pytest.raises(TraceError, match="did not accept the run"):
            run(
                {**SMALL, "seed": 12},
                tmp_path / f"refused-{len(wrong)}",
                engine=choose_engine("flower", address, 20.0, **wrong),
            )
