"""`procession init`: credentials that nobody can guess, and never replaced by accident."""

import errno
import json
import stat
import subprocess
from pathlib import Path

import pytest

from procession_schemas.subjects import InvalidSubjectError
from procession_services.cli import main
from procession_services.deploy.files import OPERATOR, Deployment
from procession_services.supervisor import SERVICES


@pytest.fixture
def deployment(tmp_path):
    return Deployment(tmp_path / "secrets")


def passwords(deployment):
    found = {}
    for kind in ("nats", "redis", "clients", "processors"):
        for file in sorted((deployment.directory / kind).iterdir()):
            if "." not in file.name:
                found[f"{kind}/{file.name}"] = file.read_text()
    return found


def test_everybody_gets_a_password_of_their_own(deployment):
    deployment.write(["acme", "beta"])
    found = passwords(deployment)
    wanted = {f"{kind}/{name}" for kind in ("nats", "redis") for name in (*SERVICES, OPERATOR)}
    assert set(found) == wanted | {
        "nats/route", "nats/system", "clients/acme", "clients/beta", "processors/masking-key"
    }  # fmt: skip
    assert len(set(found.values())) == len(found)
    assert min(len(each) for each in found.values()) >= 43  # 32 random bytes


def test_two_deployments_have_nothing_in_common(tmp_path):
    first, second = Deployment(tmp_path / "a"), Deployment(tmp_path / "b")
    for each in (first, second):
        each.write(["acme"])
    assert not set(passwords(first).values()) & set(passwords(second).values())


def test_a_second_time_replaces_nothing_and_adds_a_tenant(deployment):
    deployment.write(["acme"])
    before = passwords(deployment)
    new = deployment.write(["beta"])
    assert [file.name for file in new] == ["beta"]
    assert {**before, "clients/beta": deployment.password("clients", "beta")} == passwords(deployment)
    accounts = (deployment.directory / "nats" / "accounts.conf").read_text()
    assert '"TENANT_acme"' in accounts
    assert '"TENANT_beta"' in accounts


def test_a_full_disk_leaves_no_empty_password(deployment, monkeypatch):
    """As Python tells it: the file is there, and nothing in it."""
    write = Path.write_text

    def full(file, text, **how):
        write(file, "" if "operator" in file.name else text, **how)
        if "operator" in file.name:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match=r"cannot write .*nats/operator: No space"):
            deployment.write(["acme"])
    assert {file.name for file in (deployment.directory / "nats").iterdir()} == set(SERVICES)


def test_an_empty_password_is_none(deployment):
    deployment.write(["acme"])
    before = passwords(deployment)
    (deployment.directory / "redis" / OPERATOR).write_text("")
    (deployment.directory / "providers.env").write_text("")
    assert deployment.write() == [deployment.directory / "redis" / OPERATOR]
    after = passwords(deployment)
    assert len(after.pop(f"redis/{OPERATOR}")) >= 43
    assert after.items() <= before.items()
    assert "OPENAI_API_KEY" in (deployment.directory / "providers.env").read_text()
    assert not list(deployment.wrong())


def test_force_makes_all_anew_but_the_key_without_which_nothing_masked_is_restored(deployment):
    deployment.write(["acme"])
    before = passwords(deployment)
    key = (deployment.directory / "processors" / "masking-key").read_text()
    deployment.write(force=True)
    assert set(before.values()) & set(passwords(deployment).values()) <= {key}
    assert (deployment.directory / "processors" / "masking-key").read_text() == key


def test_a_masking_key_of_any_bytes_is_left_as_it_is(deployment):
    deployment.write(["acme"])
    key = deployment.directory / "processors" / "masking-key"
    key.write_bytes(bytes(range(200, 232)))
    deployment.write(["beta"])
    assert "beta" in deployment.tenants()
    assert key.read_bytes() == bytes(range(200, 232))
    assert not list(deployment.wrong())


def test_keys_of_providers_are_never_replaced(deployment):
    deployment.write(["acme"])
    keys = deployment.directory / "providers.env"
    keys.write_text("OPENAI_API_KEY=mine\n")
    deployment.write(force=True)
    assert keys.read_text() == "OPENAI_API_KEY=mine\n"


def test_only_the_owner_sees_the_directory_and_git_does_not(deployment):
    deployment.write(["acme"])
    assert stat.S_IMODE(deployment.directory.stat().st_mode) == 0o700
    subprocess.run(["git", "init", "-q", deployment.directory.parent], check=True)
    told = subprocess.run(
        ["git", "-C", deployment.directory.parent, "status", "--porcelain", "-uall"],
        check=True, capture_output=True,
    )  # fmt: skip
    assert told.stdout == b""


def test_redis_gets_no_password_in_clear(deployment):
    deployment.write(["acme"])
    users = (deployment.directory / "redis" / "users.acl").read_text()
    assert users.startswith("user default off resetpass ~* &* +@all\n")  # Redis 7 reads its file as this user
    for service in SERVICES:
        assert f"user {service} on #" in users
        assert deployment.password("redis", service) not in users


def test_a_tenant_imports_only_what_is_its_own(deployment):
    deployment.write(["acme", "beta"])
    accounts = (deployment.directory / "nats" / "accounts.conf").read_text()
    part = accounts.split('"TENANT_acme"')[1].split('"TENANT_')[0]
    (imports,) = [line for line in part.splitlines() if "imports:" in line]
    for each in json.loads(imports.split("imports: ")[1]):
        subject = next(iter(each.values()))["subject"]
        assert ".acme." in subject
    assert "beta" not in part


def test_a_tenant_that_is_no_token_is_refused(deployment):
    with pytest.raises(InvalidSubjectError, match=r"a\.\*"):
        deployment.write(["a.*"])


def test_the_command_writes_and_then_leaves_alone(tmp_path, capsys):
    assert main(["init", str(tmp_path), "--tenant", "acme"]) == 0
    assert "user client-acme" in capsys.readouterr().err
    (tmp_path / ".env").write_text("NATS_PORT=1\n")
    before = passwords(Deployment(tmp_path / "secrets"))
    assert main(["init", str(tmp_path)]) == 0
    assert "nothing was replaced" in capsys.readouterr().err
    assert passwords(Deployment(tmp_path / "secrets")) == before
    assert (tmp_path / ".env").read_text() == "NATS_PORT=1\n"
    assert main(["init", str(tmp_path), "--tenant", "beta"]) == 0
    assert "secrets: 1 new password\n" in capsys.readouterr().err
