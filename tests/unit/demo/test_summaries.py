from demo import summaries

ENGLISH = """# Title

Nodes keep a lease, and every node renews its lease by a heartbeat. It rains.
A node whose lease has run out gets no calls until its next heartbeat. Bananas are yellow and quite sweet.

```sh
a lease in code is not prose
```
"""
CHINESE = "节点靠心跳续约，租约到期的节点不再收到调用。今天天气很好，适合出门。每次心跳都会延长节点的租约。"


def test_english_by_words() -> None:
    assert "lease" in summaries.summary(ENGLISH, 1)
    assert {"lease", "node", "heartbeat"} <= set(summaries.keywords(ENGLISH))


def test_chinese_by_bigrams() -> None:
    assert "天气" not in summaries.summary(CHINESE, 2)
    assert {"节点", "租约", "心跳"} <= set(summaries.keywords(CHINESE))


def test_code_tables_and_headings_are_no_prose() -> None:
    assert not any("code" in sentence or "Title" in sentence for sentence in summaries.sentences(ENGLISH))
