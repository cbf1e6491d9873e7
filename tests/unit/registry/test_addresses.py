import pytest

from registry.addresses import check_address, forbidden_ip, ip_refusal, resolve_name
from registry.errors import InvalidRequest

NAMES = {
    "agent.internal": ["10.0.3.7"],
    "sneaky.example": ["93.184.216.34", "169.254.169.254"],
    "mapped.example": ["::ffff:169.254.169.254"],
}


def check(url, allowed=()):
    return check_address(url, allowed=allowed, resolve=lambda host: NAMES.get(host, []))


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.3.7:9001",
        "http://127.0.0.1:9001",
        "http://[::1]:9001",
        "https://agent.internal",
        "http://agent.internal:80/base/path",
        "http://not-started-yet:9001",
        "http://doc_summarizer:9001",
        "http://192.168.1.5",
        "HTTP://10.0.0.1",
    ],
)
def test_takes_loopback_private_and_unresolved_addresses(url):
    assert check(url) == url


def test_the_normal_form_has_no_slash_at_its_end():
    assert check("http://10.0.3.7:9001/") == "http://10.0.3.7:9001"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254",
        "http://169.254.169.254.",
        "http://2852039166",
        "http://0xa9fea9fe",
        "http://0xA9.0xFE.0xA9.0xFE",
        "http://0251.0376.0251.0376",
        "http://169.16689662",
        "http://[::ffff:169.254.169.254]",
        "http://[::ffff:a9fe:a9fe]",
        "http://[::a9fe:a9fe]",
        "http://[64:ff9b::a9fe:a9fe]",
        "http://[2002:a9fe:a9fe::1]",
        "http://[fe80::1]",
        "http://[fe80::1%25eth0]",
        "http://[fd00:ec2::254]",
        "http://[ff02::1]",
        "http://[::]",
        "http://[::ffff:0.0.0.0]",
        "http://0.0.0.0:9001",
        "http://0:9001",
        "http://0.1.2.3",
        "http://224.0.0.1",
        "http://255.255.255.255",
        "http://100.100.100.200",
        "http://metadata.google.internal",
        "http://METADATA.google.internal.",
        "http://metadata",
        "http://sneaky.example",
        "http://mapped.example",
        "http://①⑥⑨.254.169.254",
    ],
)
def test_refuses_forbidden_addresses_in_every_spelling(url):
    with pytest.raises(InvalidRequest) as caught:
        check(url)
    assert caught.value.errors[0]["path"] == "/address"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "10.0.3.7:9001",
        "ftp://10.0.3.7",
        "file:///etc/passwd",
        "http://",
        "http://:9001",
        "http://user:secret@10.0.3.7",
        "http://user@10.0.3.7",
        "http://10.0.3.7?x=1",
        "http://10.0.3.7?",
        "http://10.0.3.7/#x",
        "http://10.0.3.7:0",
        "http://10.0.3.7:",
        "http://10.0.3.7:65536",
        "http://10.0.3.7:http",
        "http://10.0.3.7:-1",
        "http://10.0.3.7 ",
        "http://10.0.3.7\n",
        "http://10.0.3.7\\@evil",
        "http://a\tb",
        "http://[::1",
        "http://a..b",
        "http://-a",
        "http://bücher.example",
        "http://a/" + "x" * 3000,
    ],
)
def test_refuses_what_is_no_plain_base_url(url):
    with pytest.raises(InvalidRequest):
        check(url)


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("http://10.0.3.7", True),
        ("http://[::ffff:10.0.3.7]", True),
        ("http://agent.internal", True),
        ("http://named.example", True),
        ("http://NAMED.example.", True),
        ("http://127.0.0.1", False),
        ("http://other.example", False),
        ("http://sneaky.example", False),
    ],
)
def test_an_allow_list_narrows(url, taken):
    allowed = ("10.0.0.0/8", "named.example", "sneaky.example")
    if taken:
        check(url, allowed)
    else:
        with pytest.raises(InvalidRequest):
            check(url, allowed)


def test_connecting_checks_again():
    assert forbidden_ip("10.0.3.7") is None
    assert "metadata" in forbidden_ip("169.254.169.254")
    assert "metadata" in forbidden_ip("::ffff:169.254.169.254")
    assert "link-local" in forbidden_ip("fe80::1%eth0")
    assert ip_refusal("10.0.0.1", host="a.example", allowed=("a.example",)) is None
    assert "REACH_ALLOWED_ADDRESSES" in ip_refusal("10.0.0.1", host="b.example", allowed=("a.example",))


def test_names_resolve_by_the_system():
    assert set(resolve_name("localhost")) & {"127.0.0.1", "::1"}
    assert resolve_name("no-such-host.invalid") == []
