"""A signature is checked with the keys that the verifier trusts; unchecked, the bundle does not count as signed."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest
from support import bundles
from support.bundles import copy_of

from coldproof.harness.cli.main import main
from coldproof.harness.release.bundle.verify import verify
from coldproof.harness.release.run.attestation import PREDICATE_TYPE, STATEMENT_TYPE
from coldproof.harness.release.run.manifest import read_manifest

WHO = "releases@example.org"


pytestmark = pytest.mark.usefixtures("small_list")


def make_key(folder: Path, name: str) -> Path:
    """Return a new key without a passphrase."""
    key = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True)
    return key


def sign(bundle: Path, key: Path, *, namespace: str = "coldproof") -> None:
    """Sign a bundle as docs/qualifying.md describes."""
    words = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", str(key), str(bundle / "manifest.json")]
    subprocess.run(words, check=True, capture_output=True)


@pytest.fixture
def signers(tmp_path: Path) -> Path:
    """Return a file with the only trusted key."""
    key = make_key(tmp_path, "trusted")
    (tmp_path / "allowed").write_text(f"{WHO} {key.with_suffix('.pub').read_text()}")
    return tmp_path / "allowed"


@pytest.fixture
def bundle(whole: Path, tmp_path: Path) -> Path:
    """Return a bundle that a test may change."""
    return copy_of(whole, tmp_path / "bundle")


def said(bundle: Path, signers: Path | None) -> tuple[bool, str]:
    """Return whether a bundle is accepted, and its reasons or the line about its signature."""
    found = verify(bundle, allowed_signers=signers)
    return found.accepted, found.summary[-1] if found.accepted else "\n".join(map(str, found.reasons))


def test_a_trusted_key_is_named(bundle: Path, signers: Path, tmp_path: Path) -> None:
    """Without trusted keys the same signature is not checked."""
    sign(bundle, tmp_path / "trusted")
    assert said(bundle, signers) == (True, f"signed by {WHO}")
    assert said(bundle, None) == (True, "signature not checked: give the keys that you trust with --allowed-signers")


def test_a_bundle_without_a_signature_is_not_signed(bundle: Path, signers: Path) -> None:
    """A verifier that requires a signature refuses the bundle."""
    why = "not signed: the bundle does not prove who made it (no manifest.json.sig)"
    assert said(bundle, None) == (True, why)
    assert said(bundle, signers) == (False, f"not accepted: {why}")


@pytest.mark.parametrize("name", ["manifest.json.sig", "manifest.json.asc"])
def test_an_empty_signature_signs_nothing(bundle: Path, signers: Path, name: str) -> None:
    """The file exists, but the bundle is not signed."""
    (bundle / name).write_text("")
    assert said(bundle, None) == (True, f"not signed: {name} is empty")
    assert said(bundle, signers)[0] is False


def test_an_untrusted_key_is_no_signer(bundle: Path, signers: Path, tmp_path: Path) -> None:
    """The signature is correct, but the key is not trusted."""
    sign(bundle, make_key(tmp_path, "untrusted"))
    accepted, why = said(bundle, signers)
    assert not accepted
    assert why.startswith("not accepted: signature invalid: no allowed signer made manifest.json.sig")


def test_a_signature_of_something_else_is_invalid(bundle: Path, signers: Path, tmp_path: Path) -> None:
    """The signature may be of another manifest or for another purpose."""
    sign(bundle, tmp_path / "trusted", namespace="file")
    assert "signature invalid: manifest.json.sig does not sign this manifest.json" in said(bundle, signers)[1]
    (bundle / "manifest.json.sig").unlink()
    sign(bundle, tmp_path / "trusted")
    bundles.change(bundle, bundles.recorded(seconds=61.0))
    bundles.draw(bundle)
    assert said(bundle, None)[0]
    assert "signature invalid: manifest.json.sig does not sign this manifest.json" in said(bundle, signers)[1]


def test_an_invalid_signature_file_is_invalid(bundle: Path, signers: Path) -> None:
    """The file may contain any text."""
    (bundle / "manifest.json.sig").write_text("-----BEGIN SSH SIGNATURE-----\n")
    assert "not accepted: signature invalid" in said(bundle, signers)[1]


def test_a_signature_of_another_kind_is_not_checked(bundle: Path, signers: Path) -> None:
    """An OpenPGP signature is an example."""
    (bundle / "manifest.json.asc").write_text("-----BEGIN PGP SIGNATURE-----\n")
    assert said(bundle, signers)[1].startswith("not accepted: signature not checked: manifest.json.asc is not an SSH")


def test_missing_keys_are_a_usage_error(bundle: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error is one line, and the exit code is 4."""
    sign(bundle, make_key(tmp_path, "key"))
    assert main(["verify", str(bundle), "--allowed-signers", str(tmp_path / "nowhere")]) == 4
    assert "no such file" in capfd.readouterr().err


def test_the_register_names_the_signer(
    bundle: Path, signers: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The signer is on the index and on the page of the engine."""
    sign(bundle, tmp_path / "trusted")
    words = ["register", str(bundle), "--allowed-signers", str(signers), "--out", str(tmp_path / "site")]
    assert main(words) == 0, capfd.readouterr()
    pages = [path.read_text() for path in (tmp_path / "site").glob("**/index.html") if "bundles" not in path.parts]
    assert sum(f"igned by {WHO}" in page for page in pages) == 2


def test_policy_tools_read_the_verdicts(bundle: Path) -> None:
    """The verdicts are an unsigned in-toto statement in a DSSE envelope about the files of the bundle."""
    envelope = json.loads((bundle / "verdicts.intoto.json").read_text())
    assert set(envelope) == {"payload", "payloadType", "signatures"}
    assert (envelope["payloadType"], envelope["signatures"]) == ("application/vnd.in-toto+json", [])
    statement = json.loads(base64.b64decode(envelope["payload"], validate=True))
    assert (statement["_type"], statement["predicateType"]) == (STATEMENT_TYPE, PREDICATE_TYPE)
    subjects = {one["name"]: one["digest"]["sha256"] for one in statement["subject"]}
    assert subjects.keys() - {"manifest.json"} == read_manifest(bundle).files.keys()
    verdicts = {name: one["verdict"] for name, one in statement["predicate"]["verdicts"].items()}
    assert verdicts == {"CHAT-9": "CONFORMS", "EVENT-9": "UNSUPPORTED", "LORA-9": "KNOWN ISSUE"}


def test_a_signed_envelope_is_still_the_bundles(bundle: Path) -> None:
    """The owner may add signatures, and a tool may use the other base64 alphabet."""
    path = bundle / "verdicts.intoto.json"
    envelope = json.loads(path.read_text())
    payload = envelope["payload"].replace("+", "-").replace("/", "_")
    path.write_text(json.dumps({**envelope, "payload": payload, "signatures": [{"keyid": "", "sig": "AAAA"}]}))
    assert said(bundle, None)[0]
    path.unlink()
    assert said(bundle, None) == (False, "left out: verdicts.intoto.json is missing")
