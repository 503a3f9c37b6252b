"""`procession init | health`."""

import argparse
import sys
from pathlib import Path
from typing import Any

from procession_services.deploy.files import Deployment, write_environment
from procession_services.deploy.permissions import tenant_user
from procession_services.runtime.health import main as health
from procession_services.supervisor import SERVICES

__all__ = ["add_deploy_commands"]


def add_deploy_commands(commands: Any) -> None:
    """Adds these commands to the command line."""
    told = "create random keys and passwords for compose.yaml; existing ones are kept"
    init = commands.add_parser("init", help=told, description=told)
    init.add_argument(
        "directory", nargs="?", type=Path, default=Path(), help="where compose.yaml is (default: here)"
    )
    init.add_argument(
        "--tenant",
        action="append",
        default=[],
        metavar="NAME",
        help="a tenant (default: `default`); may be repeated",
    )
    told = "replace every password; the key of masked data is kept"
    init.add_argument("--force", action="store_true", help=told)
    init.set_defaults(command=_init)

    told = "exit with code 0 if the service of this container is ready"
    look = commands.add_parser("health", help=told, description=told)
    look.add_argument(
        "service",
        nargs="?",
        choices=SERVICES,
        help="has no effect: only names the service on the command line",
    )
    look.set_defaults(command=lambda _options: health())


def _init(options: argparse.Namespace) -> int:
    deployment = Deployment(options.directory / "secrets")
    known = deployment.tenants()
    new = deployment.write(options.tenant or ([] if known else ["default"]), force=options.force)
    if write_environment(options.directory / ".env", Path("./secrets")):
        _say(f"{options.directory / '.env'}: settings for compose.yaml")
    _say(f"{deployment.directory}: {len(new)} new password{'' if len(new) == 1 else 's'}")
    for tenant in deployment.tenants():
        _say(
            f"  tenant {tenant}: user {tenant_user(tenant)}, password in {deployment.directory / 'clients' / tenant}"
        )
    if not new:
        _say("nothing was replaced; --force replaces all passwords")
    return 0


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
