import subprocess
import sys

import procession


def test_every_exported_name_is_there():
    assert [name for name in procession.__all__ if not hasattr(procession, name)] == []
    assert len(set(procession.__all__)) == len(procession.__all__)


def test_the_broker_is_loaded_for_clients_only():
    code = (
        "import sys, procession; procession.Processor; assert 'nats' not in sys.modules; "
        "procession.Procession; assert 'nats' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
