"use strict";
{% include "search.js" %}
{% include "graph.js" %}
{% include "export.js" %}
