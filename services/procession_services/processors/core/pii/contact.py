"""Addresses of the network: email, URL, IP address, UUID, and wallets of crypto currencies (R-PII-30)."""

import hashlib
import ipaddress
import re
from collections.abc import Iterator
from typing import Final

from stdnum import bitcoin
from stdnum.exceptions import ValidationError

from procession_services.processors.core.pii.family import Finder, Hit, Rule, ShapeFinder, before
from procession_services.processors.core.pii.grammar import Shape, chars, either, maybe, seq, text, words

WORD: Final = "[0-9A-Za-z_]"
"""What `bounded` means in R-PII-30: not next to one of these."""
_HEX = "[0-9A-Fa-f]"

# --- email -----------------------------------------------------------------------------------

_LETTERS = "A-Za-z\u00c0-\u024f\u0300-\u036f\u0370-\u0377\u037b-\u037d\u0386\u0388-\u052f"
"""Latin, Greek and Cyrillic. Not scripts without spaces, where a word before the address would be part of it."""
_LOCAL = f"[0-9{_LETTERS}._%+\\-]"
_DOMAIN = f"[0-9{_LETTERS}.\\-]"
_LOCAL_END = re.compile(f"{_LOCAL}{{1,64}}\\Z")
_MAILED = re.compile(f"@({_DOMAIN}{{1,189}}\\.([{_LETTERS}]{{2,63}}))")
_MAIL_TAIL = re.compile(f"@{_DOMAIN}{{0,253}}\\Z")
_NO_DOMAIN: Final = frozenset(
    {
        "png",
        "jpg",
        "jpeg",
        "gif",
        "svg",
        "webp",
        "avif",
        "ico",
        "tgz",
        "gz",
        "tar",
        "whl",
        "jar",
        "exe",
        "dll",
    }
)
"""Endings of files that follow an `@` as often as domains do: `icon@2x.png`."""
_USERINFO = re.compile(
    r"://[0-9A-Za-z._~%!$&*+=-]{0,50}(?::(?![0-9]+[?#])[^\s/@\"'<>,;()\[\]{}|\\`]{0,50})?\Z"
)
"""What stands in a URL before the end of its user or password; a quote, a comma, or `?` behind the host end the URL
before that."""
_LOCAL_LONGEST: Final = 64
_MAIL_REACH: Final = 64 + 1 + 253


class EmailFinder:
    """Email addresses; a domain like a file's ending and the user of a URL or a Git remote are none."""

    types = frozenset({"email"})

    def find(self, text: str, start: int, stop: int) -> Iterator[Hit]:
        """See `Finder`: looks for `@`, then to both sides."""
        at = text.find("@", start)
        floor = start
        while at >= 0:
            begin = self._local(text, at, floor)
            if begin >= stop:
                return
            domain = _MAILED.match(text, at) if begin < at else None
            if domain and self._is_mail(text, begin, at, domain):
                floor = domain.end()
                yield Hit(begin, floor, "email")
            at = text.find("@", at + 1)

    @staticmethod
    def _local(text: str, at: int, floor: int) -> int:
        local = _LOCAL_END.search(text[max(floor, at - _LOCAL_LONGEST) : at])
        return at if local is None else at - len(local.group())

    @staticmethod
    def _is_mail(text: str, begin: int, at: int, domain: "re.Match[str]") -> bool:
        if domain.group(2).lower() in _NO_DOMAIN or _USERINFO.search(before(text, begin)):
            return False
        return text[begin:at] != "git" or text[domain.end() : domain.end() + 1] != ":"

    def hot(self, text: str, start: int) -> int:
        """See `Finder`: the address or user at the end of the text."""
        tail = _MAIL_TAIL.search(text, max(start, len(text) - _MAIL_REACH))
        return self._local(text, tail.start() if tail else len(text), start)


# --- URL and UUID ----------------------------------------------------------------------------

URL_LONGEST: Final = 2000
_URL = seq(
    text("http", fold=True), maybe(text("s", fold=True)), text("://"), chars("[^\\s<>\"']", 1, URL_LONGEST)
)
_UUID = seq(*(part for n in (8, 4, 4, 4) for part in (chars(_HEX, n), text("-"))), chars(_HEX, 12))
_NOBODY: Final = re.compile(r"(?i)[0-]+|[f-]+|6ba7b81[0-4]-9dad-11d1-80b4-00c04fd430c8")


def _uuid(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The nil and max UUIDs and the name spaces of RFC 9562 stand for nobody."""
    return None if _NOBODY.fullmatch(text, start, end) else (start, end)


# --- IP addresses ----------------------------------------------------------------------------

_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4_BEGUN = "(?:[0-9]{1,3}(?:\\.[0-9]{0,3}){0,3})?"
_DOTTED = Shape(f"{_OCTET}(?:\\.{_OCTET}){{3}}", _V4_BEGUN, 15)
_NO_MORE = either(chars(WORD), seq(text("."), chars("[0-9]")))
_GROUPS = chars("[0-9A-Fa-f:]", 2, 40)
_NO_GROUP = either(chars(WORD), seq(text(":"), chars("[0-9A-Fa-f:]")))
_NETS = (
    "0.0.0.0/8", "127.0.0.0/8", "192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
    "::/127", "2001:db8::/32", "3fff::/20", "ff00::/8",
)  # fmt: skip
_RESERVED: Final = tuple(map(ipaddress.ip_network, _NETS))
"""Documentation, this host, multicast, broadcast, and masks of nets: addresses of no person."""
_VERSION = re.compile(
    r"(?i)\b(?:version|versions|ver|v|release|firmware|build|chapter|section|clause|paragraph|oid|assembly"
    r"|versión|versione|versão|abschnitt|kapitel|bersion)[\s:=.v]{0,3}\Z"
)
_SMALLEST_V6: Final = 3


def _ip(text: str, start: int, end: int) -> tuple[int, int] | None:
    try:
        address = ipaddress.ip_address(text[start:end])
    except ValueError:
        return None
    if any(address in net for net in _RESERVED) or _VERSION.search(before(text, start, 20)):
        return None
    return start, end


def _ip6(text: str, start: int, end: int) -> tuple[int, int] | None:
    if text[start:end].endswith(":") and not text[start:end].endswith("::"):
        end -= 1  # the sentence's
    groups = [group for group in text[start:end].split(":") if group]
    if len(groups) < _SMALLEST_V6 and not re.match("(?i)fe80|f[cd]|[23]", text[start:end]):
        return None  # a name space such as `abc::def`
    return _ip(text, start, end)


# --- crypto wallets --------------------------------------------------------------------------

_BASE58 = "[1-9A-HJ-NP-Za-km-z]"
_VERSIONS: Final = {0x00, 0x05, 0x1E, 0x30, 0x32, 0x41}
"""Version bytes: Bitcoin (two), Dogecoin, Litecoin (two), Tron."""
_BECH32: Final = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32_SUMS: Final = (1, 0x2BC830A3)
_UNUSED: Final = re.compile("(?i)0x(?:0{40}|0{36}dead|(.)\\1{39})")


def _base58(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Base58Check: a known version, and four bytes of a double SHA-256."""
    try:
        raw = bitcoin.b58decode(text[start:end])
    except ValidationError:
        return None
    payload, checksum = raw[:-4], raw[-4:]
    if len(payload) != 21 or payload[0] not in _VERSIONS:  # noqa: PLR2004 - a version and 160 bits
        return None
    told = hashlib.sha256(hashlib.sha256(payload).digest()).digest()[:4]
    return (start, end) if told == checksum else None


def _bech32(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The polynomial checksum of Bech32 and Bech32m (BIP 173, 350)."""
    word = text[start:end]
    if word not in (word.lower(), word.upper()):
        return None
    prefix, _, data = word.lower().rpartition("1")
    values = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    values += [_BECH32.find(c) for c in data]
    if min(values) < 0:
        return None
    total = 1
    for value in values:
        top = total >> 25
        total = (total & 0x1FFFFFF) << 5 ^ value
        for i in range(5):
            total ^= _GENERATOR[i] if (top >> i) & 1 else 0
    return (start, end) if total in _BECH32_SUMS else None


def _ether(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The null address and those that burn are nobody's."""
    return None if _UNUSED.fullmatch(text, start, end) else (start, end)


_ETHER = seq(text("0x"), chars(_HEX, 40))
_SEGWIT = seq(words("bc1", "ltc1", fold=True), chars("[0-9A-Za-z]", 38, 59))
_CLASSIC = seq(chars("[13DLMT]"), chars(_BASE58, 25, 34))

_BOUND = chars(WORD)
FINDERS: Final[tuple[Finder, ...]] = (
    EmailFinder(),
    ShapeFinder("[Hh]", [Rule("url", _URL)], apart="/", cue="://", guard="[Tt]{2}", tight=True),
    ShapeFinder(_HEX, [Rule("uuid", _UUID, _uuid, _BOUND)], apart=WORD, cue="-", tight=True),
    ShapeFinder(
        "[0-9]", [Rule("ip-address", _DOTTED, _ip, _NO_MORE)], apart="[0-9A-Za-z_.]", cue=".", tight=True
    ),
    ShapeFinder(
        "[0-9A-Fa-f:]",
        [Rule("ip-address", _GROUPS, _ip6, _NO_GROUP)],
        apart="[0-9A-Za-z_:.]",
        cue=":",
        tight=True,
    ),
    ShapeFinder(
        "[013DLMTBbl]",
        [
            Rule("crypto-wallet", _ETHER, _ether, _BOUND),
            Rule("crypto-wallet", _SEGWIT, _bech32, _BOUND),
            Rule("crypto-wallet", _CLASSIC, _base58, _BOUND),
        ],
        apart=WORD,
        guard="[0-9A-Za-z]{25}",
        tight=True,
    ),
)
