"""Few-shot prompts: their exact text, and dropping of shots that do not fit."""

import pytest

from t5like.errors import UserError
from t5like.evaluation.few_shot import FewShotPromptBuilder, Template, describe_dropped_shots, draw_shots

POOL = [{"inputs_pretokenized": f"{i} + 1 =", "targets_pretokenized": str(i + 1)} for i in range(9)]
QUESTION = {"inputs_pretokenized": "30 + 1 =", "targets_pretokenized": "31", "level": "easy"}
QUIZ = "Add the numbers.\n---\nQ: {inputs}\nA: {targets}\n\n"


def words(text):
  return text.split()


def test_the_exact_text_of_a_prompt():
  template = Template.parse(QUIZ)
  i, j = draw_shots(0, 7, 2, len(POOL))
  prompt = FewShotPromptBuilder(template, POOL, 2, 0, words)(7, QUESTION)
  assert prompt.text == (f"Add the numbers.\nQ: {i} + 1 =\nA: {i + 1}\n\nQ: {j} + 1 =\nA: {j + 1}\n\nQ: 30 + 1 =\nA:")
  assert prompt.shots == 2 and prompt.tokens == prompt.text.split()
  assert (template.answer("31"), template.stop) == (" 31", "\n")  # the space belongs to the answer, a newline ends it
  assert "31" not in prompt.text.split("Q: 30")[1]


def test_zero_shots_and_the_default_template():
  prompt = FewShotPromptBuilder(Template.read(), [], 0, 0, words)(0, QUESTION)
  assert prompt.text == "30 + 1 =\n"
  assert Template.parse("{inputs} ({level}) => {targets} ###").stop == "###"
  leveled = FewShotPromptBuilder(Template.parse("{inputs} ({level}) => {targets} ###"), [], 0, 0, words)
  assert leveled(0, QUESTION).text == "30 + 1 = (easy) =>"


def test_each_question_has_its_own_deterministic_shots():
  drawn = [draw_shots(3, number, 5, 1000) for number in range(20)]
  assert drawn == [draw_shots(3, number, 5, 1000) for number in range(20)]
  assert len({tuple(row) for row in drawn}) == 20 and all(len(set(row)) == 5 for row in drawn)
  assert drawn != [draw_shots(4, number, 5, 1000) for number in range(20)]
  assert all(number not in draw_shots(0, number, 8, 9, exclude=number) for number in range(9))


def test_the_full_pool_may_be_drawn_without_repetition():
  for number in range(5):
    assert sorted(draw_shots(0, number, 9, 9)) == list(range(9))
    assert sorted(draw_shots(0, number, 8, 9, exclude=4)) == [0, 1, 2, 3, 5, 6, 7, 8]
  template = Template.parse("{inputs} {targets}\n")
  FewShotPromptBuilder(template, POOL, 8, 0, words, pool_is_evaluated=True)
  with pytest.raises(UserError, match="has only 9 examples"):
    FewShotPromptBuilder(template, POOL, 9, 0, words, pool_is_evaluated=True)
  builder = FewShotPromptBuilder(template, POOL, 8, 0, words, pool_is_evaluated=True)
  assert builder.all([]) == []
  for number, prompt in enumerate(builder.all(POOL)):  # no question is among its own shots
    assert prompt.shots == 8 and prompt.text.count(f"{number} + 1 =") == 1


def test_separators_and_instructions():
  template = Template.parse("Sums: {level}\n-----\n{inputs}  {targets}  \n---\n")  # the second line of dashes is text
  assert (template.instruction, template.before, template.after) == ("Sums: {level}\n", "{inputs}  ", "  \n---\n")
  assert template.stop == "---" and template.answer("31") == "  31"
  assert Template.parse("{inputs} {targets}  ").after == "\n"  # spaces alone do not separate examples
  builder = FewShotPromptBuilder(template, POOL, 1, 0, words)
  shot = draw_shots(0, 2, 1, 9)[0]
  assert builder(2, QUESTION).text == f"Sums: easy\n{shot} + 1 =  {shot + 1}  \n---\n30 + 1 ="
  with pytest.raises(UserError, match="uses {kind}"):
    FewShotPromptBuilder(Template.parse("{kind}\n---\n{inputs} {targets}"), POOL, 0, 0, words).all([QUESTION])
  with pytest.raises(UserError, match="2 {targets} placeholders"):
    Template.parse("{targets}\n---\n{inputs} {targets}")


def test_shots_that_do_not_fit_are_dropped_and_reported():
  template = Template.parse("{inputs} {targets}\n")
  # Each shot has 5 words (the last line's '=' and the answer are separate), the question 4.
  builder = FewShotPromptBuilder(template, POOL, 3, 0, words, max_tokens=4 + 2 * 5)
  prompts = builder.all([QUESTION] * 2)
  assert [prompt.shots for prompt in prompts] == [2, 2]
  assert all(len(prompt.tokens) <= 14 and prompt.text.endswith("30 + 1 =") for prompt in prompts)
  _, i, j = draw_shots(0, 0, 3, len(POOL))  # the first is dropped
  assert prompts[0].text == f"{i} + 1 = {i + 1}\n{j} + 1 = {j + 1}\n30 + 1 ="
  assert describe_dropped_shots(prompts, 3) == "2 of 2 prompts cannot fit 3 shots: they have 2.0 on average, at least 2"
  assert describe_dropped_shots(prompts, 2) == ""
  with pytest.raises(UserError, match=r"too long even without shots: 4 tokens \(limit 3\)"):
    FewShotPromptBuilder(template, POOL, 3, 0, words, max_tokens=3)(0, QUESTION)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("Q: {inputs}", "0 {targets} placeholders"),
    ("{targets} {inputs} {targets}", "2 {targets} placeholders"),
    ("{targets} {inputs}", "no placeholder before"),
  ],
)
def test_invalid_templates(text, message):
  with pytest.raises(UserError, match=message):
    Template.parse(text)


def test_a_missing_field_is_reported(tmp_path):
  with pytest.raises(UserError, match=r"(?s)uses {input}.*nearest.*inputs") as error:
    Template.parse("{input} {targets}").check(QUESTION, "task 'sums'")
  assert "{level}" in str(error.value)
  with pytest.raises(UserError, match="cannot read the prompt template"):
    Template.read(tmp_path / "none.txt")
  with pytest.raises(UserError, match="has only 9 examples"):
    FewShotPromptBuilder(Template.read(), POOL, 10, 0, words)
