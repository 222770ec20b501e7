"""Secrets as people paste them: in settings, commands, tables, prose and numbered lines."""

from __future__ import annotations

import shlex

import pytest

from rawko_state.redact import values
from rawko_state.redact.redactor import Redactor
from rawko_state.redact.stream import Stream

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
    "end of a key in a sentence": f"it says `{LINE}\n{RANDOM}{RANDOM}\n-----END RSA PRIVATE KEY-----`",
    "key in a box": f"│ -----BEGIN PRIVATE KEY----- │\n│ {LINE} │\n│ {RANDOM}{RANDOM} │\n",
    "key in code in JSON": f'"(\\n  \\"-----BEGIN PRIVATE KEY-----\\\\n\\"\\n  \\"{LINE}\\\\n\\"\\n  \\"{RANDOM}{RANDOM}\\"\\n)"',
    "CSV": f"name,value\napi_key,{RANDOM}\nregion,x\n",
    "property with dots": f"app.api.key={RANDOM}\n",
    "okta": f"Authorization: SSWS {RANDOM}",
    "key of a map": f"https://maps.example.org/x?key={RANDOM}&a=1",
    "coloured command": f"\x1b[33mmysql -u root -p{RANDOM} app\x1b[0m",
    "an option before": f"keytool -genkey -storepass {RANDOM} -keypass {RANDOM}",
    "here-string": f"docker login -u bob --password-stdin <<< '{RANDOM}'",
    "flags together": f"curl -su bob:{RANDOM} https://example.org/",
    "netrc in JSON": f'"machine api.example.org\\n\\tlogin bob\\n\\tpassword {RANDOM}\\n"',
    "numbered netrc": f"     1\tmachine api.example.org\n     2\t\tlogin bob\n     3\t\tpassword {RANDOM}\n",
    "Secret in numbered lines": f"     1\tkind: Secret\n     2\tdata:\n     3\t  config: {RANDOM}\n",
    "token of an app": f"ghs_748962420_eyJ{RANDOM}.eyJ{LINE}.{LINE}",
    "key of PuTTY": f"Private-Lines: 2\n{LINE}\n{RANDOM}{RANDOM}\nPrivate-MAC: 8e2b7c1d9f3a4056",
}
WHOLE = {
    "words with digits on a line of their own": ("env:\n- name: SMTP_PASSWORD\n  value: %s\n", "walnut43river46"),
    "what looks like a call in an env file": ("DB_PASSWORD=%s\nX=1", "&a9n(Zebra0mGf"),
    "hexadecimal digits with dashes": (
        '\tmailgunSigningKey := "%s"\n',
        "b5d2ba74be8bea67750df0445e88b1b8-d111636c-3f1fa6a7",
    ),
    "hexadecimal digits in a sentence": (
        "The algolia api key is %s and works on both hosts.",
        "c10381458674ba069729690ca8682d8f",
    ),
    "a digit among letters": ("the password is %s, please don't tell", "hunter2zebra"),
    "numbered YAML": ("     1\tdatabase:\n     2\t  password: %s\n", "hunter2zebra"),
    "numbered INI": ("     1\t[pypi]\n     2\tpassword = %s\n", "hunter2zebra"),
    "YAML in colour": ("\x1b[1m\x1b[33mpassword: %s\x1b[0m", "hunter2zebra"),
    "my own": ("My password: %s", "zaq12wsx"),
    "user and password": ("username: bob / password: %s", "ilovecats99"),
    "user and password in backticks": ("Login with user `bob` and password `%s`.", "hunter2zebra"),
    "a call that sets it": ("define( 'DB_PASSWORD', '%s' );", "hunter2zebra"),
    "a vendor behind a colour": ("\x1b[36mdatadog_id2\x1b[0m=\x1b[33m%s\x1b[0m\n", "8e2b7c1d9f3a4056b8c7d2e1f0a93b54"),
    "a vendor behind an escaped line break": ('"x\\ndatadog: %s\\ny"', "8e2b7c1d9f3a4056b8c7d2e1f0a93b54"),
    "a dollar sign": ("mysql -u root -p'%s' app", "my$ecretP4ss"),
    "a name in one word": ("SSHPASS=%s sshpass -e ssh bob@host", "hunter2zebra"),
    "a UUID as an access token": ('"access_token": "%s"', "9fa5ff51-80bc-40db-ac0e-15637ebb8e3b"),
    "a UUID as a password": ("https://oauth2:%s@gitlab.com/x/y.git", "9fa5ff51-80bc-40db-ac0e-15637ebb8e3b"),
    "a UUID in a header": ("curl -H 'PRIVATE-TOKEN: %s' https://x", "9fa5ff51-80bc-40db-ac0e-15637ebb8e3b"),
    "an anchor of YAML": ("password: &db %s\n", "hunter2zebra"),
    "a long gap": ("password:               %s\n", "hunter2zebra"),
    "a default in code": ("const token = process.env.TOKEN || '%s'", "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "a default of Python": ("os.environ.get('API_KEY') or '%s'", "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "an array of C": ('char apiKey[] = "%s";', "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "an assignment of R": ('password <- "%s"', "hunter2zebra9"),
    "a dump of PHP": ('["password"]=> string(12) "%s" }', "hunter2zebra"),
    "text of SQL Server": ("WITH PASSWORD = N'%s';", "hunter2-Zebra"),
    "an element of HTML": ('<meta name="api-key" content="%s">', "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "a parameter of AWS": ('"Name":"/db/password","Type":"SecureString","Value":"%s"', "hunter2-Zebra"),
    "a list of YAML with line numbers": ("    41\t- name: API_KEY\n    42\t  value: %s\n", "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "a block of YAML in a diff": ("+api_key: |\n+  %s\n", "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "a key with a number": ("Unseal Key 1: %s", "k2JdQ8sLZxYv7WbNm2PtRf5GhTyUiOpAsDfGhJkLzXc="),
    "a password made by a server": ("A temporary password is generated for root@localhost: %s", "hunter2-Zebra"),
    "a word with digits in a command": ("mysql -u root -p%s", "secret123"),
    "a word with digits in an env file": ("DB_PASSWORD=%s", "password123"),
    "a word with digits in an address": ("postgres://bob:%s@db.internal/app", "admin123"),
    "a short password in a sentence": ("the password is %s, please don't tell", "hunter2"),
    "a short password of my own": ("my password: %s", "hunter2"),
    "capitals in a sentence": ("the password is %s", "Sup3rS3cret"),
    "words with dashes": ('password: "%s"', "correct-horse-battery-staple"),
    "four words": ("password = '%s'", "correct horse battery staple"),
    "letters and digits by hand": ('token = "%s"', "abc123def456ghi789"),
    "the key that AWS shows": ("AWS_SECRET_ACCESS_KEY=%s", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"),
    "an id that AWS can't make": ("use %s", "AKIA1234567890ABCDEF"),
    "a user of a domain": ("curl --ntlm -u 'ACME\\bob:%s' https://x", "hunter2-Zebra"),
    "a cookie of a HAR file": ('{"name":"cookie","value":"sid=%s"}', "k2JdQ8sLZxYv7WbNm2PtRf5G"),
    "an internal key": ("acme internal key %s was used", "ak9_roMuAN9mvrn8OaNdG0g0GEig"),
}
NEVER = (
    "id,token,created_at_2024\n1,", "keytool --genkey --token-type x", 'session_token: 123e4567-e89b-12d3-a456-426614174000',
    'X.ID="password",X.SIGN_IN_METHOD2="password"', "password1 = password2", 'getpass("Password: ")', "mysql -p$DB_PASS app",
    "https://example.org/x?key=123e4567-e89b-12d3-a456-426614174000", "the password is sha256hashed now", "name: TOKEN_FILE\n  value: walnut43river46\n",
    "pass ``force_external=True`` to it", "the password is case-sensitive", "the token is base64-encoded", "    password: string;\n",
    "        private_key: PrivateKeyTypes,\n", "n.password=!!e.password,n.ignoreFocusOut=1", "let PW=VB;const iZ=1",
    "password=&next=1", "the token test_tokens_are_listed_2", "a secret my-rather-long-file-name-v2.yaml", "password = md5(salt1)", "kind: SecretStore\ndata:\n  config: eThxV1ZJekZTTjZzYmVDSUk1Z2c=\n", "| token | string |",
    "password: getPassword(user1)\n", "if token===119||i.kind===265&&t.parent.x", "echo done | tee log", "zip -r a.zip folder1",
    "waf update --change-token 12cs345-67cd-890b-1cd2-c3a4567d89f1 x", "the password for the cluster named ``cluster-2``",
    "MultiHostUrl('https://foo.com:123,foo:bar@bar.com/path')", '"pattern": "arn:*:.*:.*:[0-9]+:.*"', "`Authorization: AWS4-HMAC-SHA256 Credential=`",
    '"alias/aws/xray": "e9b758eb-6230-4744-93d1-ad3b7d71f2f6"', "#define ERRCODE_INVALID_PASSWORD MAKE_SQLSTATE('2')", "password: 'should match the confirmed password'",
    "kms --public-key MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAvH3Yj0wbkLEp", "token || 'the default token'", "ok, err := <-secrets", "char token[] = {0}",
    "the password is sha512-crypt", "your password is base64", "acme-token: 'acme_[0-9a-f]{32}'", "https://user:pass@example.org/",
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


@pytest.mark.parametrize("where", WHOLE)
def test_the_whole_value_goes(where: str) -> None:
    form, secret = WHOLE[where]
    before, _, after = form.partition("%s")
    shown = REDACTOR.text(form % secret)
    assert shown.startswith(before), shown
    assert shown.endswith(after), shown
    assert secret not in shown, shown
    assert secret[-6:] not in shown, shown


@pytest.mark.parametrize(
    "form",
    [
        'password="%s"',
        "API_KEY=%s",
        "postgres://app:%s@db.internal/app",
        'curl -b "session=%s; theme=dark" https://example.org/',
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAn4Zq0vYyQbX3c9T1\n%s\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_a_secret_around_a_removed_one_goes_too(form: str) -> None:
    tag = "[redacted:jwt:0000]"
    shown = REDACTOR.text(form % f"k2JdQ8sLZx{tag}Yv7WbNm2Pt")
    assert tag in shown
    assert "k2JdQ8sLZx" not in shown
    assert "Yv7WbNm2Pt" not in shown
    assert REDACTOR.text(shown) == shown
    assert REDACTOR.named("password", f"k2JdQ8sLZx{tag}Yv7WbNm2Pt") == "[redacted:assigned-secret:0000]"
    assert REDACTOR.named("password", tag) is None


@pytest.mark.parametrize("end", ["\n", "\\n"])
def test_the_beginning_of_a_cut_off_key_is_not_streamed(end: str) -> None:
    text = f"see {end}{LINE}{end}{LINE}{end}{LINE}{end}-----END RSA PRIVATE KEY-----{end}"
    for step in (1, 3, 7):
        stream = Stream(REDACTOR)
        shown = "".join(stream.feed(text[at : at + step]) for at in range(0, len(text), step)) + stream.flush()
        assert LINE[:12] not in shown, (step, shown)


def test_a_name_that_was_judged_is_not_judged_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """SECRET_KEY has two words that start a name; its value is looked at once."""
    calls = []
    assigned = values.assigned
    monkeypatch.setattr(values, "assigned", lambda *given, **more: calls.append(given) or assigned(*given, **more))
    REDACTOR.spans('SECRET_KEY = "plain words"\n')
    assert len(calls) == 1, calls


@pytest.mark.parametrize(
    "command",
    [
        "mysql -u root -p'%s' app",
        "curl -u 'bob:%s' \"$HOST\"",
        "DB_PASSWORD='%s' make \"$TARGET\"",
        "echo '%s' | sudo -S ls $HOME",
        "curl -H 'Authorization: Bearer %s' $HOST",
        "tool --token '%s' $HOST",
    ],
)
def test_a_command_that_was_quoted_for_a_shell(command: str) -> None:
    shown = REDACTOR.text(shlex.join(["sh", "-c", command % "k2JdQ8sLZx7vWbNm2Pt"]))
    assert "k2JdQ8sLZx7vWbNm2Pt" not in shown
    assert shlex.split(shown)[:2] == ["sh", "-c"]


@pytest.mark.parametrize("text", NEVER)
def test_code_and_prose_are_left_alone(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_structured_data_with_a_name_beside_the_value() -> None:
    given = {"env": [{"name": "DB_PASSWORD", "value": "hunter2Zebra"}, {"name": "HOST", "value": "hunter2Zebra"}]}
    first, second = REDACTOR.value(given)["env"]
    assert first["value"] == "[redacted:assigned-secret:0000]"
    assert second["value"] == "hunter2Zebra"


class TestOneCommandAfterAnother:
    """What looks like the option of one command may belong to the next."""

    @pytest.mark.parametrize(
        "text",
        [
            "ldapsearch -D cn=admin -w hunter2Zebra -b dc=x ; curl -b 'session=k2JdQ8sLZxYv7WbNm2Pt' https://example.org/",
            "docker login -u bob --password-stdin <<< 'hunter2Zebra'\\n\\nsshpass -p k2JdQ8sLZxYv7WbNm2Pt ssh bob@host",
            "curl --user='bob:hunter2Zebra' https://example.org/\\ncurl -su bob:k2JdQ8sLZxYv7WbNm2Pt https://example.org/",
        ],
    )
    def test_both_are_found(self, text: str) -> None:
        shown = REDACTOR.text(text)
        assert "hunter2Zebra" not in shown
        assert "k2JdQ8sLZxYv7WbNm2Pt" not in shown


class TestTheEndOfAKeyInAStream:
    """A key without its beginning is known by its last line: until that has come, what may be its lines is held back."""

    LINES = (
        "hPRDePVMTHZwECVRPTxYzALoLyd5B4dH1a7ujBlyA3o2Xn6SMO3NHSbWl7fpwuCQ",
        "EFJ4XznVRjXHwC5ld1ez0kQpLrTgB2mNcVhYsWdKfJxUoIaEuZ9t7q6v8b3n4m5c",
        "Qk1pZ0hx==",
    )

    @pytest.mark.parametrize("size", [1, 3, 11])
    @pytest.mark.parametrize("lines", [1, 2])
    @pytest.mark.parametrize("sign", ["", "\x1b[32m", "│ ", "'", "`", "(", "> ", " 12\t", "12→"])
    @pytest.mark.parametrize("end", ["\n", "\r\n", "\\n"])
    def test_no_line_of_it_is_shown(self, size: int, lines: int, sign: str, end: str) -> None:
        body = [*self.LINES[:lines], self.LINES[-1]]
        text = end.join(["output:", *(sign + line for line in body), "-----END RSA PRIVATE KEY-----", "done"])
        stream = Stream(REDACTOR)
        shown = "".join(stream.feed(text[at : at + size]) for at in range(0, len(text), size)) + stream.flush()
        whole = REDACTOR.text(text)
        assert not [line for line in body if line[:16] in shown and line[:16] not in whole]
        assert shown.endswith("done")
