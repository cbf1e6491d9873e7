import pytest

from routing.core.similarity import likeness, words

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
