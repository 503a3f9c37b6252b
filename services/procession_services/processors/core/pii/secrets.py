"""Secrets: keys of providers, tokens, private keys, passwords. Who has one can act for its owner (D-56)."""

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterator
from math import log2
from typing import Final

from procession_services.processors.core.pii.contact import WORD
from procession_services.processors.core.pii.family import CONTEXT, Finder, Hit, Rule, ShapeFinder, before
from procession_services.processors.core.pii.grammar import chars, either, maybe, repeat, seq, text, words

_ALNUM = "[0-9A-Za-z]"
_KEY = "[0-9A-Za-z_-]"
_HEX = "[0-9a-f]"
_UPPER = "[0-9A-Z]"

# --- keys of providers -----------------------------------------------------------------------

_PROVIDERS: Final[tuple[tuple[tuple[str, ...], str, int, int], ...]] = (
    (("sk-ant-", "sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-v1-", "sk-lf-", "pk-lf-"), _KEY, 20, 250),
    (("xai-", "gsk_", "pplx-", "nvapi-", "r8_", "hf_", "fw_", "tvly-", "jina_", "lsv2_pt_"), _KEY, 30, 120),
    (("AKIA", "ASIA", "AROA", "AIDA", "ABIA"), _UPPER, 16, 16),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _ALNUM, 36, 255),
    (("github_pat_",), "[0-9A-Za-z_]", 22, 255),
    (("glpat-", "gldt-", "glrt-", "glsa_", "glc_"), _KEY, 20, 128),
    (("AIza",), _KEY, 35, 35),
    (("GOCSPX-",), _KEY, 28, 28),
    (("ya29.", "1//0"), _KEY, 30, 250),
    (("xoxa-", "xoxb-", "xoxe-", "xoxp-", "xoxr-", "xoxs-", "xapp-"), "[0-9A-Za-z-]", 10, 250),
    (("sk_live_", "sk_test_", "pk_live_", "pk_test_", "rk_live_", "rk_test_", "whsec_"), _ALNUM, 16, 250),
    (("SK", "AC"), _HEX, 32, 32),
    (("SG.",), "[0-9A-Za-z_.-]", 60, 72),
    (("key-",), _HEX, 32, 32),
    (("npm_",), _ALNUM, 36, 36),
    (("pypi-AgEIcHlwaS5vcmc",), _KEY, 50, 250),
    (("dop_v1_", "doo_v1_", "dor_v1_"), _HEX, 64, 64),
    (("dapi",), _HEX, 32, 34),
    (("shpat_", "shpca_", "shppa_", "shpss_"), "[0-9A-Fa-f]", 32, 32),
    (("sq0atp-", "sq0csp-", "EAAA"), _KEY, 22, 64),
    (("ATATT3", "ATCTT3"), "[0-9A-Za-z_=-]", 50, 250),
    (("lin_api_", "ntn_", "secret_", "PMAK-", "NRAK-", "figd_", "phc_", "phx_", "rnd_"), _KEY, 27, 100),
    (("hvs.", "hvb."), _KEY, 24, 120),
    (("dp.pt.", "dp.st."), _ALNUM, 40, 50),
    (("sbp_",), _HEX, 40, 40),
    (("AGE-SECRET-KEY-1",), _UPPER, 58, 58),
)


def _random(value: str) -> bool:
    """Whether a value looks drawn, not written: letters with digits, or of both cases in turn; few repeats."""
    mixed = re.search("[0-9]", value) and re.search("[A-Za-z]", value)
    return bool(mixed or _CASES.search(value)) and entropy(value) > 3  # noqa: PLR2004 - bits


_CASES = re.compile("(?:[a-z]+[A-Z]+){4}")


def entropy(value: str) -> float:
    """Bits for each character, by the frequencies in the value itself."""
    return -sum(n / len(value) * log2(n / len(value)) for n in Counter(value).values())


def _drawn(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Not a row of `x`, nor words joined by dashes."""
    value = text[start:end]
    drawn = _random(value[4:]) or (value.isalnum() and entropy(value[4:]) > 3)  # noqa: PLR2004 - bits
    return (start, end) if drawn else None


def _openai(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Letters and digits; with dashes in it both cases too, since the class of a style sheet has dashes."""
    value = text[start + 3 : end]
    drawn = value.isalnum() or all(re.search(one, value) for one in ("[a-z]", "[A-Z]", "[0-9]"))
    return (start, end) if drawn and _random(value) else None


_BOUND = chars(_ALNUM)
_ASKED = seq(
    words("sk", "pk", fold=True),
    chars("[-_]"),
    words("live", "test", "proj", fold=True),
    chars("[-_]"),
    chars(_ALNUM, 16, 250),
)
"""The keys that the reference knows (R-PII-30)."""
_OPENAI = seq(text("sk-"), chars(_KEY, 24, 200))
_TELEGRAM = seq(chars("[0-9]", 8, 10), text(":AA"), chars(_KEY, 32, 34))
_SLACK_HOOK = seq(text("https://hooks.slack.com/services/"), chars("[0-9A-Za-z/]", 20, 80))
_BEARER = seq(
    text("bearer", fold=True), maybe(text(":")), chars("[ \\t]", 1, 3), chars("[0-9A-Za-z_.~+/=-]", 20, 500)
)


_BASIC = seq(text("basic", fold=True), chars("[ \\t]", 1, 3), chars("[0-9A-Za-z+/=]", 8, 500))


def _basic(text: str, start: int, end: int) -> tuple[int, int] | None:
    """Base64 of a user, a colon and a password (RFC 7617)."""
    value = text[start + len("basic") : end].lstrip()
    try:
        told = base64.b64decode(value, validate=True).decode()
    except ValueError:
        return None
    return (end - len(value), end) if ":" in told and told.isprintable() else None


def _bearer(text: str, start: int, end: int) -> tuple[int, int] | None:
    value = re.search(r"\S+\Z", text[start:end])
    return (end - len(value.group()), end) if value and _random(value.group()) else None


# --- JSON web tokens -------------------------------------------------------------------------

_PIECE = "[0-9A-Za-z_-]"
_JWT = seq(
    text("eyJ"), chars(_PIECE, 8, 1000), text("."), chars(_PIECE, 8, 3000), text("."), chars(_PIECE, 0, 1000)
)


def _jwt(text: str, start: int, end: int) -> tuple[int, int] | None:
    """The head is JSON that names an algorithm."""
    head = text[start:end].partition(".")[0]
    try:
        told = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))
    except (binascii.Error, ValueError):
        return None
    return (start, end) if isinstance(told, dict) and ("alg" in told or "enc" in told) else None


# --- private keys ----------------------------------------------------------------------------

_KINDS_OF_KEY = ("", "RSA ", "EC ", "DSA ", "OPENSSH ", "ENCRYPTED ", "ANY ", "PGP ", "SSH2 ENCRYPTED ")
_MARK = either(*(text(f"{kind}PRIVATE KEY{tail}-----") for kind in _KINDS_OF_KEY for tail in (" BLOCK", "")))
_BREAK = chars("[\\s\\\\]", 1, 6)
_BASE64 = "[0-9A-Za-z+/=.]"
_LINES = repeat(seq(_BREAK, chars(_BASE64, 16, 80)), 1, 110)
_PEM = seq(
    text("-----BEGIN "),
    _MARK,
    repeat(
        seq(_BREAK, words("Proc-Type:", "DEK-Info:", "Version:", "Comment:"), chars("[^\\n]", 0, 100)), 0, 3
    ),
    maybe(either(_LINES, seq(maybe(_BREAK), chars(_BASE64, 81, 6000)))),
    repeat(seq(_BREAK, chars(_BASE64, 1, 15)), 0, 3),
    maybe(seq(maybe(_BREAK), text("-----END "), _MARK)),
)
_SOME_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*(?:-----END |[0-9A-Za-z+/=]{16})", re.DOTALL)


def _pem(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A block with its end mark, or all of one that was cut off; the begin mark alone is only spoken of."""
    return (start, end) if _SOME_KEY.match(text, start, end) else None


# --- what is assigned to a name --------------------------------------------------------------


def _named(*names: str, alone: bool = False) -> "re.Pattern[str]":
    """Matches the reverse of a text that ends with one of these names, `_` standing for what may join its words.

    With `alone`, no letter may stand before the name.
    """
    choices = "|".join("[ _-]?".join(re.escape(word[::-1]) for word in reversed(n.split("_"))) for n in names)
    return re.compile(f"(?i)\\s{{0,4}}[\"'`\\]]{{0,2}}(?:{choices})" + ("(?![^\\W\\d_])" if alone else ""))


_SIGN = re.compile("[:=\uff1a]")
_SECRET_NAME = _named(
    "api_key", "api_secret", "secret_key", "access_key", "access_key_id", "client_secret", "app_secret", "secret",
    "private_key", "token", "credential", "credentials", "account_key", "shared_key", "encryption_key", "signing_key",
    "webhook_secret", "clé_api", "clé_secrète", "clave_api", "clave_secreta", "chiave_api", "api_schlüssel",
    "schlüssel",
)  # fmt: skip
_PASSWORD_NAME = _named(
    "password", "passwd", "passphrase", "passcode", "pwd", "pass", "passwort", "kennwort", "mot_de_passe",
    "contraseña", "clave", "senha", "palavra_passe", "parola", "wachtwoord", "hasło", "lösenord", "пароль", "密码",
    "密碼", "パスワード", "비밀번호", "heslo", "jelszó", "passord", "adgangskode", "salasana", "şifre", "lozinka",
    alone=True,
)  # fmt: skip
_REFERENCE_NAME = re.compile("(?i)\\s{0,4}[\"'`]?(?:yek|terces)[_-]?ipa")
_QUOTE = re.compile("[\"'`]")
_VALUE = seq(chars("\\s", 0, 4), chars("[\"'`]", 0, 1), chars("[^\\s\"'`<>,;]", 1, 500))
_VALUE_FULL = re.compile("[ \\t\\n\\r]{0,4}([\"'`]?)([^\\s\"'`<>,;]{1,500})([\"'`]?)")
_NO_VALUE = re.compile(
    r"(?i)\*+|x{3,}|\.{3}|\[?redacted\]?|null|none|undefined|true|false|required|optional|string|str|secret|password"
    r"|changeme|hidden|https?:.*|(?:\$|%|\{|\[|process\.|os\.|env\.|self\.|your|my[_-]|<).*"
)
_CODE = re.compile(r"[\w.]*[({\[].*|.*\(\)?|&.*")
_PLAIN = re.compile("[0-9A-Za-z_-]{20,500}")
_SHORTEST_SECRET: Final = 12
_SHORTEST_PASSWORD: Final = 4


class AssignedFinder:
    """Values behind a name and a sign: `api_key="..."`, `client_secret: ...`, `password = ...`."""

    types = frozenset({"api-key", "password"})

    def find(self, text: str, start: int, stop: int) -> Iterator[Hit]:
        """See `Finder`: looks for the sign, then to both sides."""
        for sign in _SIGN.finditer(text, start, min(len(text), stop + CONTEXT)):
            hit = self._hit(text, sign.start())
            # Without its sign it would not be found again.
            if hit and start <= hit.start and hit.origin < stop:
                yield hit

    @staticmethod
    def _hit(text: str, at: int) -> Hit | None:
        name = before(text, at)[::-1]
        named = _REFERENCE_NAME.match(name)
        secret, password = _SECRET_NAME.match(name), _PASSWORD_NAME.match(name)
        value = _VALUE_FULL.match(text, at + 1) if named or secret or password else None
        if value is None:
            return None
        quote, said = value.group(1), value.group(2)
        if named and _PLAIN.fullmatch(said):
            if _QUOTE.search(named[0]):  # a field of JSON, which stays one
                return Hit(*value.span(2), "api-key", cause=at)
            return Hit(at - named.end(), value.end(), "api-key")
        if _NO_VALUE.fullmatch(said) or (not quote and _CODE.fullmatch(said)):
            return None
        if secret and len(said) >= _SHORTEST_SECRET and _random(said):
            return Hit(*value.span(2), "api-key", cause=at)
        if named and (begun := _PLAIN.match(said)):  # a sentence, a parenthesis or a URL goes on behind it
            return Hit(value.start(2), value.start(2) + begun.end(), "api-key", cause=at)
        plain = not quote and _WRITTEN.fullmatch(said) and text[at : value.start(2)] != "="
        if password and len(said) >= _SHORTEST_PASSWORD and not plain:
            return Hit(*value.span(2), "password", cause=at)
        return None

    def hot(self, text: str, start: int) -> int:
        """See `Finder`: a value that goes on behind its name, or a name whose sign may follow."""
        for sign in _SIGN.finditer(text, max(start, len(text) - _VALUE.longest - 2)):
            if _HOT_VALUE.match(text, sign.start()):
                name = before(text, sign.start())[::-1]
                named = _SECRET_NAME.match(name) or _PASSWORD_NAME.match(name) or _REFERENCE_NAME.match(name)
                if named:
                    return max(start, sign.start() - named.end())
        named = _HOT_NAME.match(before(text, len(text))[::-1])
        return max(start, len(text) - named.end()) if named else len(text)


_WRITTEN = re.compile(r"[^\W\d_]+[.!?]?")
_HOT_VALUE = re.compile(f"[:=\uff1a](?:{_VALUE.begun})[\"'`]?\\Z")
_HOT_NAME = re.compile(
    "(?i)\\s{0,4}[\"'`]?(?:(?:yek|terces)[_-]?ipa|(?:ek|k|erces|rces|ces|es|s)?[_-]?ipa|pa|a)"
)

# --- passwords in a sentence

_SPOKEN = (
    "password", "passwort", "passphrase", "passcode", "contraseña", "senha", "wachtwoord", "hasło", "mot de passe",
)  # fmt: skip
_SAID = seq(
    words(*_SPOKEN, fold=True),
    chars("[ \\t]", 1, 3),
    words("is", "ist", "lautet", "es", "é", "est", "to", fold=True),
    maybe(text(":")),
    chars("[ \\t]", 1, 3),
    chars("[\"'`]", 0, 1),
    chars("[^\\s\"'`<>,;]", 4, 128),
)


def _said(text: str, start: int, end: int) -> tuple[int, int] | None:
    """A value with a digit or a sign in it; a word goes on with the sentence."""
    value = re.search(r"[^\s\"'`]+\Z", text[start:end])
    said = value.group().rstrip(".!?:)") if value else ""
    if not value or not re.search(r"[0-9]|\w[^\w\s'-]\w", said) or _NO_VALUE.fullmatch(said):
        return None
    return end - len(value.group()), end - len(value.group()) + len(said)


# --- passwords in URLs -----------------------------------------------------------------------

_USERINFO = seq(
    chars("[A-Za-z]"),
    chars("[0-9A-Za-z+.-]", 1, 20),
    text("://"),
    chars("[^\\s:/@?#]", 0, 64),
    text(":"),
    chars("[^\\s/@]", 1, 128),
    text("@"),
    chars("[^\\s@/\"'<>]"),
)


def _userinfo(text: str, start: int, end: int) -> tuple[int, int] | None:
    colon = text.index(":", text.index("://", start) + 3)
    if _NO_VALUE.fullmatch(text, colon + 1, end - 2):
        return None
    return colon + 1, end - 2


def _openings() -> str:
    """The first two characters of all keys that have a beginning of their own."""
    seconds: dict[str, str] = {}
    prefixes = {prefix[:2] for choices, *_ in _PROVIDERS for prefix in choices}
    for prefix in prefixes | {"sk", "pk", "Sk", "Pk", "SK", "PK", "sK", "pK"}:
        seconds[prefix[0]] = seconds.get(prefix[0], "") + re.escape(prefix[1])
    return "(?:" + "|".join(f"{first}[{second}]" for first, second in sorted(seconds.items())) + ")"


FINDERS: Final[tuple[Finder, ...]] = (
    ShapeFinder("e", [Rule("jwt", _JWT, _jwt, chars("[0-9A-Za-z_-]"))], apart=WORD, cue="eyJ", tight=True),
    ShapeFinder(
        "[A-Za-z0-9]",
        [
            *(
                Rule("api-key", seq(words(*prefixes), chars(one, least, most)), _drawn, _BOUND)
                for prefixes, one, least, most in _PROVIDERS
            ),
            Rule("api-key", _ASKED),
            Rule("api-key", _OPENAI, _openai, _BOUND),
        ],
        apart=WORD,
        opening=_openings(),
        tight=True,
    ),
    ShapeFinder("[0-9]", [Rule("api-key", _TELEGRAM, _drawn, _BOUND)], apart=WORD, cue=":AA", tight=True),
    ShapeFinder(
        "[Bb]",
        [Rule("api-key", _BEARER, _bearer), Rule("password", _BASIC, _basic, _BOUND)],
        apart=WORD,
        guard="(?i:ea|as)",
    ),
    ShapeFinder("h", [Rule("api-key", _SLACK_HOOK)], cue="hooks.slack.com", tight=True),
    ShapeFinder("-", [Rule("private-key", _PEM, _pem)], apart="-", cue="PRIVATE KEY"),
    AssignedFinder(),
    ShapeFinder(
        "[PpCcSsWwHhMm]", [Rule("password", _SAID, _said)], apart="[^\\W_]", guard="(?i:as|on|en|ac|ot)"
    ),
    ShapeFinder("[A-Za-z]", [Rule("password", _USERINFO, _userinfo)], apart=WORD, cue="://", tight=True),
)
