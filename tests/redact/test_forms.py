"""Secrets as people paste them: in settings, commands, tables, prose and numbered lines."""

from __future__ import annotations

import pytest

from rawko_state.redact.redactor import Redactor

REDACTOR = Redactor(lambda secret: "0000")
RANDOM = "k2JdQ8sLZxYv7WbNm2PtRf5G"
LINE = "h2pQwErTyUiOpAsDfGhJkLzXc3VbNm1qAz2wSx3eDc4rFv5tGb6yHn7uJm8k9Lo0"
PASSWORDS = (
    "hunter2Zebra", "!Zebra2024", "p@ss-W0rd9", "Tr0ub4dor&3", "S3cr3t$Pass", "Winter2024!", "xK9#mQ2v", "abc123XYZ",
    "%Zebra2024", "#Zebra2024x", "^Zebra99x", "~Zebra2024x", "&Zebra99x", "*Zebra99x", "+Zebra99x", "Summer2024",
)  # fmt: skip
SETTINGS = {
    "env file": "HOST=x\nDB_PASSWORD=%s\nX=1",
    "export": 'export DB_PASSWORD="%s"',
    "YAML": "db:\n  user: bob\n  password: %s\n",
    "JSON": '{"user": "bob", "password": "%s"}',
    "INI": "[db]\nhost = x\npassword = %s\n",
    "INI in JSON": '{"text": "[db]\\npassword = %s\\n"}',
    "diff": "@@ -1 +1 @@\n-DB_PASSWORD=%s\n+DB_PASSWORD=$X\n",
    "numbered lines": "     1\tDB_PASSWORD=%s\n     2\tX=1",
    "lines with arrows": "     1→DB_PASSWORD=%s\n     2→X=1",
    "grep": ".env:3:DB_PASSWORD=%s\n",
    "colour": "DB_PASSWORD=\x1b[33m%s\x1b[0m\n",
    "netrc": "machine api.example.org login bob password %s\n",
    "command": "sshpass -p '%s' ssh bob@host",
    "curl": "curl --user='bob:%s' https://example.org/",
    "Dockerfile": "FROM x\nENV DB_PASSWORD %s\nRUN make",
    "URL": "DATABASE_URL=postgres://app:%s@db.internal:5432/app",
}
NAMES = (
    "API key",
    "Access token",
    "Secret access key",
    "Client secret",
    "AWS secret access key",
    "Personal access token",
)
SPOKEN = {
    "colon": "%s: %s\nnext",
    "is": "the %s is %s, I think",
    "beside": "use the %s %s, please",
    "is with a colon": "%s is: %s",
    "arrow": "%s -> %s",
    "next line": "%s:\n  %s\n",
    "backticks": "use the %s `%s`",
    "table": "| %s | %s |",
    "bold": "**%s**: `%s`",
}
FORMS = {
    "name and value": f'{{"name": "DB_PASSWORD", "value": "{RANDOM}"}}',
    "block of YAML": f"api_key: >-\n  {RANDOM}\n",
    "property list": f"<key>APIKey</key>\n<string>{RANDOM}</string>",
    "Secret by kubectl": f"apiVersion: v1\ndata:\n  config: {RANDOM}\nkind: Secret\n",
    "Secret by hand": f"kind: Secret\nmetadata:\n  name: x\nstringData:\n  config: {RANDOM}\n",
    "prompt": f"AWS Secret Access Key [None]: {RANDOM}{RANDOM}",
    "cookie": f"curl --cookie 'session={RANDOM}' https://example.org/",
    "standard input": f"echo {RANDOM} | docker login --password-stdin",
    "sudo": f"echo '{RANDOM}' | sudo -S true",
    "= inside": f"contentful_token: jr5h1h6zb9-q2={RANDOM}\n",
    "twice on a line": f"unzip -P {RANDOM} a.zip; then unzip -P {RANDOM} b.zip or mysql -p{RANDOM} and mysql -p{RANDOM}",
    "short variable": f"DB_PW={RANDOM}",
    "key in grep": f"id_rsa:1:-----BEGIN RSA PRIVATE KEY-----\nid_rsa:2:{LINE}\nid_rsa:3:{RANDOM}{RANDOM}\n",
    "end of a key": f"...\n{LINE}\n{RANDOM}{RANDOM}\n-----END RSA PRIVATE KEY-----",
    "numbered key in JSON": f'"     1\\t-----BEGIN EC PRIVATE KEY-----\\n     2\\t{LINE}\\n     3\\t{RANDOM}{RANDOM}\\n"',
    "arrows in JSON": f'"1\\u2192-----BEGIN EC PRIVATE KEY-----\\n2\\u2192{LINE}\\n3\\u2192{RANDOM}{RANDOM}\\n"',
    "Secret in JSON": f'"kind: Secret\\ndata:\\n  config: {RANDOM}\\n"',
    "end of a key in JSON": f'"...\\n{LINE}\\n{RANDOM}{RANDOM}\\n-----END RSA PRIVATE KEY-----"',
    "key of PuTTY": f"Private-Lines: 2\n{LINE}\n{RANDOM}{RANDOM}\nPrivate-MAC: 8e2b7c1d9f3a4056",
}
NEVER = (
    "pass ``force_external=True`` to it", "the password is case-sensitive", "the token is base64-encoded", "    password: string;\n",
    "        private_key: PrivateKeyTypes,\n", "n.password=!!e.password,n.ignoreFocusOut=1", "let PW=VB;const iZ=1",
    "password=&next=1", "the token test_tokens_are_listed_2", "a secret my-rather-long-file-name-v2.yaml", "password = md5(salt1)", "kind: SecretStore\ndata:\n  config: eThxV1ZJekZTTjZzYmVDSUk1Z2c=\n", "| token | string |",
    "password: getPassword(user1)\n", "if token===119||i.kind===265&&t.parent.x", "echo done | tee log", "zip -r a.zip folder1",
)  # fmt: skip


@pytest.mark.parametrize("where", SETTINGS)
def test_a_password_goes_whatever_its_characters(where: str) -> None:
    for password in PASSWORDS:
        shown = REDACTOR.text(SETTINGS[where] % password)
        assert password[1:] not in shown, shown


@pytest.mark.parametrize("where", SPOKEN)
def test_names_of_several_words_are_names(where: str) -> None:
    for name in NAMES:
        assert RANDOM not in REDACTOR.text(SPOKEN[where] % (name, RANDOM)), name


@pytest.mark.parametrize("where", FORMS)
def test_a_form_that_people_paste(where: str) -> None:
    assert RANDOM not in REDACTOR.text(FORMS[where])


@pytest.mark.parametrize("text", NEVER)
def test_code_and_prose_are_left_alone(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_structured_data_with_a_name_beside_the_value() -> None:
    given = {"env": [{"name": "DB_PASSWORD", "value": "hunter2Zebra"}, {"name": "HOST", "value": "hunter2Zebra"}]}
    first, second = REDACTOR.value(given)["env"]
    assert first["value"] == "[redacted:assigned-secret:0000]"
    assert second["value"] == "hunter2Zebra"
