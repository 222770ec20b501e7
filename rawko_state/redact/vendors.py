"""Names of vendors, and what stands behind them."""

from __future__ import annotations

from typing import Final

VENDORS: Final = (
    "adafruit", "adobe", "airtable", "algolia", "alibaba", "amplitude", "artifactory", "asana", "atlassian", "auth0",
    "azure", "beamer", "bintray", "bitbucket", "bitly", "bittrex", "brevo", "castai", "circleci", "clickhouse",
    "cloudflare", "codecov", "cohere", "coinbase", "confluence", "confluent", "contentful", "datadog", "deepgram",
    "deepseek", "discord", "drone", "dropbox", "etsy", "facebook", "fastly", "finicity", "finnhub", "flickr", "freshbooks",
    "gitter", "gocardless", "heroku", "hetzner", "hubspot", "intercom", "intra42", "jfrog", "jira", "kraken", "kucoin",
    "launchdarkly", "linear", "linked_in", "linkedin", "linode", "looker", "mailchimp", "mailgun", "mapbox", "mattermost",
    "meraki", "message_bird", "messagebird", "mistral", "mixpanel", "netlify", "new-relic", "new_relic", "newrelic",
    "nytimes", "octopus", "okta", "openweather", "opsgenie", "pagerduty", "plaid", "postmark", "private_ai", "privateai",
    "rapidapi", "rollbar", "sendbird", "sendinblue", "sentry", "shodan", "sidekiq", "snyk", "sonar", "sourcegraph",
    "splunk", "squarespace", "sumo_logic", "sumologic", "telegram", "travis", "trello", "twilio", "twitch", "twitter",
    "vercel", "wandb", "xray", "yandex", "zendesk",
)  # fmt: skip
"""Their keys have no prefix: a random value behind a name with one of these in it is a secret."""

KEY_OWNERS: Final = (*VENDORS, *(
    "anthropic", "authress", "azure_devops", "consul", "cosmos", "cosmos_db", "cosmos db", "cosmosdb", "kaggle", "nomad",
    "aws", "bedrock", "buildkite", "cerebras", "clojars", "crates", "databricks", "digitalocean",
    "docker", "doppler", "duffel", "dynatrace", "easypost", "elastic", "elevenlabs", "figma", "fireworks", "firebase",
    "flutterwave", "frameio", "freemius", "gcp", "gemini", "github", "gitlab", "google", "grafana", "groq", "harness",
    "honeycomb", "huggingface", "infracost", "langfuse", "langsmith", "linked-in", "lob", "mandrill", "maxmind",
    "message-bird", "neon", "notion", "npm", "openai", "openrouter", "openshift", "perplexity", "pinecone", "planetscale",
    "posthog", "postman", "prefect", "private-ai", "pubnub", "pulumi", "readme", "replicate", "resend", "rubygems",
    "salesforce", "scalingo", "sendgrid", "settlemint", "shippo", "shopify", "slack", "square", "stripe", "sumo",
    "supabase", "tavily", "terraform", "tmdb", "typeform", "unsplash", "vault", "vonage", "zoom",
))  # fmt: skip
"""A random value behind 'key' is a secret if one of these precedes that word."""
