import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.core.similarity import Vocabulary, likeness, words

SUMMARY = "file_summary 输入本地文件路径或文件内容，输出摘要和关键要点"
TICKET = "ticket_create Write a ticket for abnormal data 写工单"


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("文件摘要", SUMMARY),
        ("文件的摘要", SUMMARY),
        ("summarize a file", SUMMARY),
        ("file sumary", SUMMARY),
        ("写工单", TICKET),
        ("create tickets", TICKET),
    ],
)
def test_alike(text, offered):
    assert likeness(text, offered) >= 0.6


@pytest.mark.parametrize(
    ("text", "offered"),
    [("天气预报", SUMMARY), ("translate speech", SUMMARY), ("文件摘要", TICKET), ("", SUMMARY), ("!?", SUMMARY)],
)
def test_not_alike(text, offered):
    assert likeness(text, offered) < 0.6


def test_scripts_are_told_apart():
    assert words("总结PDF文件") == {"总结", "pdf", "文件"}


def test_courtesies_say_nothing():
    assert words("请帮我总结一下这份报告") == {"总结", "报告"}
    assert words("Could you please summarize this report for me") == {"summarize", "report"}


SAID = st.text(st.sampled_from("abs 文件摘要的_-报告"), max_size=20)


@given(SAID, st.lists(SAID, max_size=5))
def test_a_vocabulary_scores_all_texts_as_each_by_itself(wanted, texts):
    named = {f"n{n}": text for n, text in enumerate(texts)}
    scores = Vocabulary(named).scores(wanted)
    for name, text in named.items():
        assert scores.get(name, 0.0) == pytest.approx(likeness(wanted, text))
